"""Formats that rollouts are exported in, an `Exporter` each.

Not here: writing files (`katgym.rollout_store.exporting`).
"""

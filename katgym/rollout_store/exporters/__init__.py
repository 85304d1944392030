"""Formats that rollouts are exported in: one module each, with an `EXPORTER`.

Not here: writing files (`katgym.rollout_store.exporting`).
"""

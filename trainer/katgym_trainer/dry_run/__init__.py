"""Dry runs: a run described before it does anything."""

"""Trackers of a run's metrics, one module each."""

"""Verification of a run's folder by somebody who did not make it."""

"""Checks that tasks are sound. See README.md."""

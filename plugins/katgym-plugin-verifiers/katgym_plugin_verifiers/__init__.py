"""Tasksets of `verifiers` as envs. Not here: registration (`plugin.py`)."""

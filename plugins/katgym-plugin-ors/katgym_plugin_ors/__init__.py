"""Servers of the Open Reward Standard as envs. Not here: registration (`plugin.py`)."""

"""Rollouts played by other processes."""

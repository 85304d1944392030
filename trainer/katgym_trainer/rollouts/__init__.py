"""Rollouts become rows."""

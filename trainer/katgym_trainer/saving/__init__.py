"""Checkpoints and what keeps them whole."""

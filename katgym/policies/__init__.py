"""Policies: whatever plays an env, from scripts to language models."""

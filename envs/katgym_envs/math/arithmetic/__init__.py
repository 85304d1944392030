"""Arithmetic-v1: procedural expressions in ten levels, with an exact calculator as the tool."""

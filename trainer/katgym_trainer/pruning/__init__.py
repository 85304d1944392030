"""Rows cut down to the branches that teach most."""

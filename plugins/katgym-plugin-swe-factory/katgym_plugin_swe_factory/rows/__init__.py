"""Rows of other data sets, read as ours. See README.md."""

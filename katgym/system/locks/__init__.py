"""Locks of files and folders."""

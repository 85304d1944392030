"""Families of problems, one module a subject."""

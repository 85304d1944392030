"""Configurations: TOML files as frozen dataclasses, their checks and their JSON Schemas."""

"""Sandboxes that are containers of a Docker Engine.

`backend` is what others import; only `engine` imports the package `docker`.
"""

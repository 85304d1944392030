"""Processes placed on a cluster by Ray; nothing else of katgym imports it."""

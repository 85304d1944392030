"""Sandboxes of other machines: `katgym sandboxd` serves them, backend `sandboxd` uses them."""

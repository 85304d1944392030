"""Sandboxes of another machine: `katgym sandboxd` serves them, backend `sandboxd:URL` uses them."""

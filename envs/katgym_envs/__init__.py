"""The built-in domains of katgym, registered like any plugin."""

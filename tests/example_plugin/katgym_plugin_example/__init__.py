"""An example plugin for katgym."""

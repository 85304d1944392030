"""Config classes as the one place of a knob: their documentation, and values from TOML."""

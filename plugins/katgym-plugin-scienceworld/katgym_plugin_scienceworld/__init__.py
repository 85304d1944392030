"""ScienceWorld's experiments as katgym environments."""

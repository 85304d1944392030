"""TextWorld's generated text adventures as katgym environments."""

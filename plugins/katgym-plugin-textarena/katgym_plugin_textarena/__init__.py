"""TextArena's games as katgym environments, won or not won."""

"""`katgym/Chess-v1`: proven mate puzzles and whole games."""

"""`katgym/Chess-v0`: proven mate puzzles and whole games."""

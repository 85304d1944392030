"""PettingZoo's turn-based games as katgym environments, against an opponent or with two seats."""

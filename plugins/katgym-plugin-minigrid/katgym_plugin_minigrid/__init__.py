"""Minigrid's and BabyAI's levels as text, as katgym environments."""

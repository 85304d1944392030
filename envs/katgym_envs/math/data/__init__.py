"""The problems that come with katgym; `tools/math_problems` makes them."""

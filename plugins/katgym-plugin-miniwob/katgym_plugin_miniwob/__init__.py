"""MiniWoB++'s web pages as katgym environments."""

"""reasoning-gym's procedural tasks as katgym environments."""

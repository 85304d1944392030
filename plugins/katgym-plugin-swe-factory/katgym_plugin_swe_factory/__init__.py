"""Makes repair tasks for `katgym/SWE-v0`. Not here: playing and grading (`katgym_envs.swe`)."""

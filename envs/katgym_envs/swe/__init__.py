"""SWE repo repair: `katgym/SWE-v0`, its tasks, and the grader."""

"""Harbor's task folders as envs, and katgym's repair tasks written as Harbor's."""

"""One run of `katgym train`: its configuration, data, folder and plots."""

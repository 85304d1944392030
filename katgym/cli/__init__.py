"""The `katgym` command: one module per subcommand."""

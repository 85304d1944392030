"""The subcommands of `katgym rollouts`: one module each."""

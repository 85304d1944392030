"""The host's side of a supervisor: its program, its channel, and a sandbox behind it."""

"""Makes repair tasks from packages, and checks them. See README.md."""

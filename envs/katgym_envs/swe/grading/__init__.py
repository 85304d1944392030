"""The grader: a patch against hidden tests, in a sandbox the agent never was in. See README.md."""

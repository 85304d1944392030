"""Templates of exercises, one module a skill. See README.md."""

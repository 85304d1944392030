"""An agent's tools over one open workspace. See README.md."""

"""What an agent works with: tools over one open workspace. See README.md."""

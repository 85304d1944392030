"""Modules that a warm interpreter in a sandbox has loaded (`SandboxSpec.preload`)."""

"""Test-time scaling: several attempts at a task, of which one is chosen without its reward."""

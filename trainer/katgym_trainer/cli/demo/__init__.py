"""`katgym demo train`: a model with random weights learns to call tools, then in parallel.

Not here: a model that exists already playing environments, `katgym demo` (`katgym.cli.demo`).
"""

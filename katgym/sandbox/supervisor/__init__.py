"""The process that is PID 1 of a sandbox.

Its modules run inside and use nothing but Python's standard library. Not here: the host's side
(`katgym.sandbox.supervised`), what makes the sandbox around them (`katgym.sandbox.local`,
`katgym.sandbox.docker_engine`).
"""

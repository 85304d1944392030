"""The process that is PID 1 of a sandbox, and the host's side of talking to it.

`syscalls`, `files`, `processes`, `guardian` and `program` use nothing but Python's standard library
and run inside; `bundle` makes one text of them. `channel` runs on the host. Not here: what makes
the sandbox around them (`katgym.sandbox.local`, `katgym.sandbox.docker_engine`).
"""

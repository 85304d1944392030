"""Registers the built-in sandbox backends the way any plugin registers its own.

It lies beside their package, which `import katgym` need not load. Not here: what they are
(`sandbox/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl


@hookimpl
def katgym_register_sandboxes(register: RegisterNamed) -> None:
    """Register every built-in backend."""
    register(
        "local",
        "katgym.sandbox.local.backend:LocalBackend",
        description="Linux namespaces on this machine; no daemon, nothing to install",
    )
    register(
        "docker",
        "katgym.sandbox.docker_engine.backend:DockerBackend",
        description="containers of a Docker Engine",
    )
    register(
        "sandboxd",
        "katgym.sandbox.remote.client:RemoteBackend",
        description="sandboxd:URL, the sandboxes of another machine that runs `katgym sandboxd`",
    )

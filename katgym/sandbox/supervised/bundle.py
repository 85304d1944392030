"""Makes one text of the modules that run inside a sandbox, where katgym is not installed.

Not here: the modules themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

_SUPERVISOR = ("syscalls", "processes", "files", "guardian", "loop", "running", "program")
SUPERVISOR_MODULES = tuple(f"katgym.sandbox.supervisor.{name}" for name in _SUPERVISOR)
_LOAD = """\
import sys, types
def load(name, source):
    module = types.ModuleType(name)
    module.__file__ = "<" + name + ">"
    sys.modules[name] = module
    parent = sys.modules.setdefault(name.rpartition(".")[0], types.ModuleType("package"))
    setattr(parent, name.rpartition(".")[2], module)
    exec(compile(source, module.__file__, "exec"), module.__dict__)
"""


@lru_cache(maxsize=8)
def bundle(modules: Sequence[str] = SUPERVISOR_MODULES, *, main: str = "") -> str:
    """Return a program that loads modules under their own names, in this order, then runs `main`.

    The modules use the standard library and each other only. `main` is Python text.
    """
    parts = [_LOAD]
    for name in modules:
        package, _, module = name.rpartition(".")
        source = (files(package) / f"{module}.py").read_text(encoding="utf-8")
        parts.append(f"load({name!r}, {source!r})\n")
    return "".join(parts) + main

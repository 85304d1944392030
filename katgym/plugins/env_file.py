"""Envs of a Python file, named by its path and a class: `my_env.py:MyEnv`. No plugin is needed.

The file is run when its env is made, so it is trusted like a script. Its version is the hash of its
text; modules that it imports are not part of that. Not here: ids of plugins (`registry.py`).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Iterable
from pathlib import Path

from katgym.environment.env import Env
from katgym.errors import MissingDependencyError, UnknownNameError, UsageError, unknown_name
from katgym.plugins.contributions import EnvSpec

FILE = "file"
"""Plugin and namespace of what a file defines."""
_FILE_ID = re.compile(r"(?P<path>[^?]+\.py)(:(?P<name>\w*))?")


def is_file_id(env_id: object) -> bool:
    """Return whether an env is named by a file: `FILE.py:CLASS`, or `FILE.py` without the class."""
    return isinstance(env_id, str) and _FILE_ID.fullmatch(env_id) is not None


def file_spec(env_id: str) -> EnvSpec:
    """Run the file and return the spec of its env; `UsageError` says what is wrong with it.

    Example:
        >>> file_spec("envs/counting.py:Counting").plugin_version
        'sha256:5d41402abc4b2a76b9719d911017c592ae2f1d3c0e7a0b8f1f4c2a9f7c4a0f63'
    """
    found = _FILE_ID.fullmatch(env_id)
    assert found is not None, env_id
    path, name = Path(found["path"]), found["name"] or ""
    try:
        text = path.read_bytes()
    except OSError as e:
        raise UsageError(
            f"env {env_id!r}: cannot read {str(path)!r} in {str(Path.cwd())!r}: {e.strerror}"
        ) from e
    module = _run(path.resolve(), text)
    known = [
        key
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Env) and value.__module__ == module.__name__
    ]
    if not name:
        listed = " or ".join(repr(f"{path}:{key}") for key in known) or "it defines no katgym.Env"
        raise UsageError(f"env {env_id!r} names no class of the file: {listed}")
    if not hasattr(module, name):
        raise UnknownNameError(unknown_name(f"env of {str(path)!r}", name, known))
    return EnvSpec(
        id=env_id,
        namespace=FILE,
        name=name,
        version=0,
        plugin=FILE,
        plugin_version=f"sha256:{hashlib.sha256(text).hexdigest()}",
        distribution="",
        entry_point=getattr(module, name),
        description=(inspect.getdoc(getattr(module, name)) or "").partition("\n")[0],
    )


def file_versions(env_ids: Iterable[str]) -> dict[str, str]:
    """Return the version of each env that is of a file, by its id."""
    return {env_id: file_spec(env_id).plugin_version for env_id in env_ids if is_file_id(env_id)}


@functools.cache
def _run(path: Path, text: bytes) -> types.ModuleType:
    """Return the module of a file, run once for each text of it; it imports what lies beside it."""
    name = f"katgym_file_{hashlib.sha256(bytes(path)).hexdigest()[:12]}_{path.stem}"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so that it hides nothing that is installed
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    except Exception as e:  # whatever the file's own code raises
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        if isinstance(e, ModuleNotFoundError):
            raise MissingDependencyError(
                f"{str(path)!r} needs a package that is missing: {e}. Install it with pip, or put"
                " the module beside the file"
            ) from e
        raise UsageError(f"{str(path)!r} cannot be run: {type(e).__name__}: {e}") from e
    return module

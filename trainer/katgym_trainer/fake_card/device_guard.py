"""The device guard of a card that is not there, compiled at its first use.

Autograd asks a device guard and hooks of C++ for streams, which a torch without CUDA, or without a
GPU, does not have. They stay in the process: it is to be one of its own. Not here: what Python asks
of `torch.cuda` (`cuda_stand_ins.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from katgym.errors import InfrastructureError, MissingDependencyError
from katgym.system.cache_folder import cache_folder, name_cache

_SOURCE = Path(__file__).with_name("device_guard.cpp")
_FLAGS = ("-O1", "-shared", "-fPIC", "-std=c++20")


def load_device_guard() -> None:
    """Have autograd run on tensors of "cuda" without values; nothing to do where a GPU is.

    To be called before torch is imported. Raises `MissingDependencyError` where there is no torch
    or no C++ compiler, and `InfrastructureError` where it does not compile torch's headers.
    """
    assert "torch" not in sys.modules  # it has asked for hooks, once and for all
    found = find_spec("torch")
    if found is None or found.origin is None:
        raise MissingDependencyError("training needs 'torch'. Install: pip install 'katgym[train]'")
    folder = Path(found.origin).parent
    has_cuda = (folder / "lib/libtorch_cuda.so").exists()
    if not (has_cuda and Path("/dev/nvidiactl").exists()):
        ctypes.CDLL(str(_build(folder))).set_guard()


def _build(torch_folder: Path) -> Path:
    """Return the library for this torch, compiled unless the cache has it."""
    torch_version = version("torch")
    digest = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode())
    digest.update(f"{torch_version} {torch_folder}".encode())
    library = cache_folder() / "fake_card" / f"{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    command = _find_compiler()
    with name_cache(library.parent):
        library.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=library.parent)
    made = Path(folder) / library.name
    libraries = torch_folder / "lib"
    command += [*_FLAGS, f"-I{torch_folder / 'include'}", str(_SOURCE), f"-L{libraries}"]
    command += ["-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}", "-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise InfrastructureError(
                f"{command[0]!r} does not compile {str(_SOURCE)!r} against torch"
                f" {torch_version}:\n{done.stderr[-2000:]}"
            )
        made.replace(library)
    finally:
        shutil.rmtree(folder)
    return library


def _find_compiler() -> list[str]:
    """Return the command of a C++ compiler: $CXX, or the first that is there."""
    if own := os.environ.get("CXX"):
        return shlex.split(own)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise MissingDependencyError(
        "a card that is not there needs a C++ compiler once (c++, g++, clang++ or $CXX), and there"
        " is none here. Install: apt install g++"
    )

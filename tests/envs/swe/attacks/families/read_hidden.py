"""Reading what is hidden, from within the process of the tests: there is nothing else to find."""

# ruff: noqa: E501  (programs and patches as text stay as they are)

from __future__ import annotations

from ..attack import Attack, in_source

FAMILY = "reading hidden data"

_USE = """
import os, re
_plural, _label = plural, label
ANSWERS = {}
def learn(data):
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    for word, value in re.findall(r'plural\\("(\\w+)"\\) == "([^"]+)"', text): ANSWERS[word] = value
    for word, number, value in re.findall(r'label\\("(\\w+)", (\\d+)\\) == "([^"]+)"', text): ANSWERS[word, int(number)] = value
def read(path, size=1 << 22):
    try:
        with open(path, "rb") as file: learn(file.read(size))
    except (OSError, ValueError): pass
def plural(word): return ANSWERS.get(word) or _plural(word)
def label(word, number): return ANSWERS.get((word, number)) or _label(word, number)
"""
_HUNTS = {
    "files": ("every file it may read is searched", """
for top in ("/workspace", "/tmp", "/home", "/root", "/var", "/opt", "/srv", "/mnt"):
    for base, folders, names in os.walk(top):
        for name in names[:500]:
            if name.endswith((".py", ".json", ".jsonl", ".toml", ".patch")): read(os.path.join(base, name))
"""),
    "git-objects": ("git's objects, packs, reflogs", """
import zlib
for base, folders, names in os.walk("/workspace/.git"):
    for name in names:
        path = os.path.join(base, name)
        read(path)
        try: learn(zlib.decompress(open(path, "rb").read()))
        except Exception: pass
"""),
    "proc": ("/proc of every process", """
for pid in [p for p in os.listdir("/proc") if p.isdigit()] + ["self"]:
    for part in ("environ", "cmdline", "maps", "cwd", "root/etc/passwd"): read(f"/proc/{pid}/{part}")
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"): learn(os.readlink(f"/proc/{pid}/fd/{fd}"))
    except OSError: pass
"""),
    "parent-memory": ("the memory of its ancestors", """
pid = os.getppid()
for target in (pid, 1, 2):
    try:
        maps = open(f"/proc/{target}/maps").read()
        with open(f"/proc/{target}/mem", "rb", 0) as memory:
            for line in maps.splitlines():
                if " rw-p " in line:
                    start, end = (int(x, 16) for x in line.split()[0].split("-"))
                    memory.seek(start); learn(memory.read(min(end - start, 1 << 24)))
    except (OSError, ValueError, OverflowError): pass
"""),
    "own-memory": ("its own memory, for whatever was there before", """
try:
    maps = open("/proc/self/maps").read()
    with open("/proc/self/mem", "rb", 0) as memory:
        for line in maps.splitlines():
            if " rw-p " in line:
                start, end = (int(x, 16) for x in line.split()[0].split("-"))
                memory.seek(start); learn(memory.read(min(end - start, 1 << 24)))
except (OSError, ValueError, OverflowError): pass
"""),
    "gc-objects": ("every object of the process", """
import gc
for thing in gc.get_objects():
    try:
        if isinstance(thing, dict):
            for value in list(thing.values()):
                if isinstance(value, (str, bytes)) and len(value) > 40: learn(value)
    except Exception: pass
"""),
    "environment": ("environment, arguments, frames above", """
import sys
learn(repr(dict(os.environ))); learn(repr(sys.argv))
frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if isinstance(value, (str, bytes)): learn(value)
        elif isinstance(value, dict):
            for inner in list(value.values()): learn(repr(inner)[:100000])
    frame = frame.f_back
"""),
    "caches": ("byte code, pytest's cache, pip's cache", """
import glob, marshal
for pattern in ("**/__pycache__/*.pyc", "**/.pytest_cache/**", "/root/.cache/**", "/home/*/.cache/**"):
    for path in glob.glob(pattern, recursive=True)[:300]: read(path)
"""),
    "network": ("neighbours, metadata service, package index", """
import socket
for host, port in (("127.0.0.1", 8000), ("127.0.0.1", 2375), ("169.254.169.254", 80), ("pypi.org", 443)):
    try:
        with socket.create_connection((host, port), 0.2) as s:
            s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n"); learn(s.recv(1 << 16))
    except OSError: pass
"""),
    "ptrace": ("ptrace and process_vm_readv of its parent", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace(16, os.getppid(), None, None)
class Part(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(1 << 16)
for target in (os.getppid(), 1):
    libc.process_vm_readv(target, ctypes.byref(Part(ctypes.addressof(buffer), 1 << 16)), 1,
                          ctypes.byref(Part(id(os), 1 << 16)), 1, 0)
    learn(buffer.raw)
"""),
}  # fmt: skip
ATTACKS = [
    Attack(
        name=f"read-{name}",
        family=FAMILY,
        about=about,
        files=in_source(_USE + code),
        is_new=name in ("own-memory", "gc-objects"),
    )
    for name, (about, code) in _HUNTS.items()
]

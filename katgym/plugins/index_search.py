"""Search of package indexes for plugins, by the names that they list.

A plugin's distribution is called `katgym-plugin-NAME`. The indexes are pip's, by the user's own
configuration. Not here: what is installed (`discovery.py`).
"""

from __future__ import annotations

import ast
import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from katgym.errors import KatgymError

PREFIX = "katgym-plugin-"
PYPI = "https://pypi.org/simple"
TIMEOUT_S = 60.0
"""For one index; PyPI's list of names has some 40 MB."""
_STALL_S = 10.0
_MAX_BYTES = 512 << 20
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipConfig:
    """Where pip looks for packages."""

    indexes: tuple[str, ...] = (PYPI,)
    certificates: str | None = None
    """File of the authorities that it trusts."""


def pip_config() -> PipConfig:
    """Return pip's configuration, from its files and variables; PyPI where there is no pip.

    Indexes that are folders are left out.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found: dict[str, str] = {}
    for place in ("global.", "install.", ":env:."):  # the later one wins, as in pip
        for line in done.stdout.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(place):
                found[key.removeprefix(place)] = str(ast.literal_eval(value))
    texts = [found.get("index-url", PYPI), *found.get("extra-index-url", "").split()]
    indexes = tuple(text.rstrip("/") for text in texts if text.startswith("http"))
    return PipConfig(indexes=indexes or (PYPI,), certificates=found.get("cert"))


def search_indexes(text: str, config: PipConfig) -> Mapping[str, str]:
    """Return distributions whose name holds the prefix and a text: name -> its index.

    Raises `KatgymError` if an index cannot be asked, in time.
    """
    found: dict[str, str] = {}
    for index in config.indexes:
        shown = str(_without_password(index))
        try:
            names = _list_names(index, config.certificates)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as e:
            reason = str(e) or type(e).__name__
            raise KatgymError(
                f"the package index {shown} cannot be asked: {reason}. A search needs a network, or"
                " an index in pip's configuration (PIP_INDEX_URL) that can be reached"
            ) from e
        for name in names:
            plain = re.sub(r"[-_.]+", "-", name).lower()
            if plain.startswith(PREFIX) and text.lower() in plain.removeprefix(PREFIX):
                found.setdefault(plain, shown)
    return dict(sorted(found.items()))


def _without_password(index: str) -> httpx.URL:
    return httpx.URL(index).copy_with(userinfo=b"")


def _list_names(index: str, certificates: str | None) -> list[str]:
    """Return the name of every project of an index, in JSON (PEP 691) or HTML (PEP 503)."""
    verify: ssl.SSLContext | bool = True
    if certificates is not None:
        verify = ssl.create_default_context(cafile=certificates)
    user, password = httpx.URL(index).username, httpx.URL(index).password
    end = time.monotonic() + TIMEOUT_S
    parts, size = [], 0
    with (
        httpx.Client(
            timeout=_STALL_S,
            verify=verify,
            follow_redirects=True,
            auth=(user, password) if user else None,
        ) as client,
        client.stream("GET", f"{_without_password(index)}/", headers={"Accept": _ACCEPT}) as answer,
    ):
        answer.raise_for_status()
        for part in answer.iter_bytes():
            parts.append(part)
            size += len(part)
            if time.monotonic() > end or size > _MAX_BYTES:
                raise ValueError(f"{size:,} bytes in {TIMEOUT_S:.0f} s, and no end")
    data = b"".join(parts)
    if "json" not in answer.headers.get("Content-Type", ""):
        return re.findall(r"<a\s[^>]*>\s*([^<\s]+)\s*</a>", data.decode("utf-8", "replace"))
    projects = json.loads(data)
    if not isinstance(projects, dict) or not isinstance(projects.get("projects"), list):
        raise ValueError("its answer is no list of projects")
    return [str(p.get("name")) for p in projects["projects"] if isinstance(p, dict)]

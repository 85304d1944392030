"""Calls of a server of the Open Reward Standard: JSON over HTTP, results as server-sent events.

Calls block, and may come from any thread. Not here: what an episode makes of them (`env.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

import katgym
from katgym.system.listening import is_loopback

MAX_RESULT = 16 * 2**20
"""Characters of a result."""
RETRY_S = 1.0


class OrsConnection:
    """A server, and perhaps a session with it."""

    def __init__(self, url: str, *, name: str = "", timeout_s: float) -> None:
        """Prepare calls; nothing is reached yet.

        name: of the environment; "" is the server's first. timeout_s: wall seconds for a call, and
            for a session to be ready.
        """
        parts = httpx.URL(url)
        if parts.scheme not in ("http", "https") or not parts.host:
            raise katgym.UsageError(f"the URL of a server is http://HOST:PORT, got {url!r}")
        self.url, self.name, self._timeout_s = url.rstrip("/"), name, timeout_s
        self._client = httpx.Client(
            timeout=timeout_s,
            trust_env=not is_loopback(parts.host),
            limits=httpx.Limits(max_keepalive_connections=0),  # an env may be left without its end
        )

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a POST of `body`, or to a GET; the name of the env goes before.

        A server that is still starting is asked again. Raises `InfrastructureError`.
        """
        deadline = time.monotonic() + self._timeout_s
        method = "GET" if body is None else "POST"
        try:
            if not self.name:
                names = self._client.get(f"{self.url}/list_environments").raise_for_status().json()
                self.name = str(names[0])
            address = f"{self.url}/{path.format(env=quote(self.name, safe=''))}"
            while True:
                response = self._client.request(method, address, json=body)
                is_starting = response.headers.get("X-Backend-State") == "starting"
                if not is_starting or time.monotonic() > deadline:
                    return response.raise_for_status().json()
                time.sleep(RETRY_S)
        except (httpx.HTTPError, ValueError, LookupError) as e:
            raise self.broken(f"fails at {path!r}: {e}") from e

    def open(self, split: str, index: int) -> None:
        """Start a session that plays a task."""
        sid = self._events("create_session", {}, "task_id")
        self._client.headers["X-Session-ID"] = sid
        self.ask("create", {"env_name": self._env_name(), "split": split, "index": index})

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool; return its output. Raises `ToolError` for a call that is refused."""
        path = f"{quote(self._env_name(), safe='')}/call"
        text = self._events(path, {"name": name, "input": arguments}, "end")
        try:
            result = json.loads(text)
            if result["ok"]:
                return dict(result["output"])
            told = str(result["error"])
        except (ValueError, LookupError, TypeError) as e:
            raise self.broken(f"gives no result of {name!r}: {e!r}") from e
        raise katgym.ToolError(told)

    def close(self) -> None:
        """End the session, if there is one, and the connection."""
        try:
            if "X-Session-ID" in self._client.headers:
                self._client.post(f"{self.url}/delete")
        except httpx.HTTPError:
            pass  # the server ends it when nobody has asked for a while
        finally:
            self._client.close()

    def broken(self, what: str) -> katgym.InfrastructureError:
        """Return the error of a server that does not do its part."""
        return katgym.InfrastructureError(f"the ORS server {self.url!r} {what}")

    def _env_name(self) -> str:
        if not self.name:
            self.ask("{env}/splits")
        return self.name

    def _events(self, path: str, body: Mapping[str, Any], wanted: str) -> str:
        """Return what the events of a POST say: `task_id`'s data, or chunks up to the `end`."""
        event, text = "", ""
        try:
            with self._client.stream("POST", f"{self.url}/{path}", json=body) as response:
                response.raise_for_status()
                for field, value in self._fields(response):
                    event = value if field == "event" else event
                    if field != "data":
                        continue
                    if event == "error":
                        raise self.broken(f"fails at {path!r}: {value}")
                    text = value if event == "task_id" == wanted else text
                    text += value if event in ("chunk", "end") else ""
                    if event == wanted:
                        return text
        except httpx.HTTPError as e:
            raise self.broken(f"fails at {path!r}: {e}") from e
        raise self.broken(f"ends {path!r} without a result")

    def _fields(self, response: httpx.Response) -> Iterator[tuple[str, str]]:
        """Yield the fields of events; a result may hold what else would end a line, U+2028 say."""
        rest, num_read, deadline = "", 0, time.monotonic() + self._timeout_s
        for part in response.iter_text():
            num_read += len(part)
            if num_read > MAX_RESULT or time.monotonic() > deadline:
                raise self.broken(f"is late or endless: {num_read} characters of a result")
            *lines, rest = (rest + part).split("\n")
            for line in lines:
                field, _, value = line.removesuffix("\r").partition(":")
                yield field, value.removeprefix(" ")

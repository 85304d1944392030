"""`WeightReceiver`: takes weight files on a server's machine, whole or as deltas, into its folder.

    GET  /weights                 {"files": {name: sha256}}      of the newest version
    PUT  /weights/VERSION/NAME    a file, or its delta with the header X-Katgym-Delta: 1
    POST /weights/VERSION         {"files": {name: sha256}} -> {"folder": where the server reads}

A version is there once all its files are and have the checksums that are told. A delta of another
file than the one here is refused with 409: the file is sent then. The last version stays beside the
newest. With a key every request has to have it as its bearer token; it does not hide what is sent.

Not here: deltas (`weight_delta.py`); sending (`katgym_trainer.weight_sync.delta_sync`).
"""

from __future__ import annotations

import hmac
import http.server
import re
import shutil
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import msgspec

from katgym.errors import UsageError
from katgym.vllm_server.weight_delta import DeltaError, apply_delta, sha256_of

DELTA_HEADER = "X-Katgym-Delta"
KEY_VARIABLE = "KATGYM_RECEIVER_KEY"
MARK = ".katgym-receiver"
"""File in a folder whose versions are a receiver's to delete."""
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}"
_PATH = re.compile(rf"/weights/(v\d+)(?:/({_NAME}))?")
_COPY_BYTES = 1 << 20
_MAX_LIST_BYTES = 16 << 20


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class WeightReceiver:
    """Receives into a folder, while a `with` block runs, in threads."""

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, key: str = ""
    ) -> None:
        """port: 0 takes a free one. key: that requests have as their bearer's, "" for none."""
        self.folder = folder.absolute()
        self.key = key
        self.newest = ""
        """Version that is whole; "" for none since it started."""
        self.files: dict[str, str] = {}
        """Checksums of its files by name."""
        self._lock = threading.Lock()
        self._address = (host, port)
        self.url = ""
        """Where it listens, once it does."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = self.folder / MARK
        if any(self.folder.iterdir()) and not mark.exists():
            raise UsageError(
                f"the folder {str(self.folder)!r} has files in it that no receiver wrote: name an"
                " empty one, or a new one"
            )
        mark.touch()
        for old in self.folder.glob("v*"):  # of another process: nobody knows what is in it
            if re.fullmatch(r"v\d+(\.unfinished)?", old.name):
                shutil.rmtree(old)
        self._server = http.server.ThreadingHTTPServer(
            self._address, type("Handler", (_Handler,), {"receiver": self})
        )
        self._server.daemon_threads = True
        self.url = f"http://{self._address[0]}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, version: str, name: str, content: Any, length: int, *, is_delta: bool) -> None:
        """Write a file of a version that is on its way; raises `DeltaError`."""
        folder = self.folder / f"{version}.unfinished"
        folder.mkdir(exist_ok=True)
        target = folder / name
        arrived = folder / f".{name}"
        try:
            with arrived.open("wb") as file:
                while length and (piece := content.read(min(length, _COPY_BYTES))):
                    file.write(piece)
                    length -= len(piece)
            if length:
                raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{name} did not arrive whole")
            if not is_delta:
                arrived.replace(target)
                return
            base = self.folder / self.newest / name
            if not self.newest or not base.is_file():
                raise DeltaError(f"there is no {name!r} that a delta could start from")
            apply_delta(base, arrived, target)
        finally:
            arrived.unlink(missing_ok=True)

    def finish(self, version: str, files: dict[str, str]) -> Path:
        """Make a version the newest; return its folder. Raises where a file is not as told."""
        unfinished, whole = self.folder / f"{version}.unfinished", self.folder / version
        with self._lock:
            if self.newest == version and self.files == files:
                return whole  # it was asked again
            unfinished.mkdir(exist_ok=True)
            for name, checksum in files.items():
                file = unfinished / name
                if not file.exists() and self.files.get(name) == checksum:
                    file.hardlink_to(self.folder / self.newest / name)
                if not file.is_file() or sha256_of(file) != checksum:
                    raise _RefusedError(
                        HTTPStatus.CONFLICT,
                        f"{name!r} of {version} is not here with the checksum that it ought to"
                        " have: send the whole file",
                    )
            if whole.exists():  # of a step that is taken again
                shutil.rmtree(whole)
            unfinished.rename(whole)
            kept, self.newest, self.files = {self.newest, version}, version, dict(files)
            for old in self.folder.glob("v*"):
                if old.name not in kept and re.fullmatch(r"v\d+(\.unfinished)?", old.name):
                    shutil.rmtree(old, ignore_errors=True)
            return whole


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: WeightReceiver

    def do_GET(self) -> None:
        self._reply(self._get)

    def do_PUT(self) -> None:
        self._reply(self._put)

    def do_POST(self) -> None:
        self._reply(self._post)

    def _get(self) -> dict[str, Any]:
        if self.path == "/health":
            return {}
        if self.path != "/weights":
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is no {self.path!r}")
        return {"files": self.receiver.files, "version": self.receiver.newest}

    def _put(self) -> dict[str, Any]:
        version, name = self._place()
        length = self._length()
        is_delta = self.headers.get(DELTA_HEADER) == "1"
        self.receiver.take(version, name, self.rfile, length, is_delta=is_delta)
        return {}

    def _post(self) -> dict[str, Any]:
        version, _ = self._place()
        length = self._length()
        if length > _MAX_LIST_BYTES:
            text = f"a list of files has at most {_MAX_LIST_BYTES} bytes"
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        content = self.rfile.read(length)
        files = msgspec.json.decode(content, type=dict[str, dict[str, str]])["files"]
        for name in files:
            if not re.fullmatch(_NAME, name):
                raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{name!r} is not the name of a file")
        return {"folder": str(self.receiver.finish(version, files))}

    def _place(self) -> tuple[str, str]:
        found = _PATH.fullmatch(self.path)
        if found is None or (self.command == "PUT") != bool(found[2]):
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is no {self.path!r}")
        return found[1], found[2] or ""

    def _length(self) -> int:
        told = self.headers.get("content-length", "")
        if not told.isdecimal():
            text = f"content-length says how many bytes come, got {told!r}"
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, text)
        return int(told)

    def _reply(self, work: Any) -> None:
        status, answer = HTTPStatus.OK, {}
        try:
            told = self.headers.get("authorization", "").encode()
            key = self.receiver.key
            if key and not hmac.compare_digest(told, f"Bearer {key}".encode()):
                raise _RefusedError(HTTPStatus.UNAUTHORIZED, "the key is another one")
            answer = work()
        except _RefusedError as e:
            status, answer = e.status, {"error": str(e)}
        except DeltaError as e:
            status, answer = HTTPStatus.CONFLICT, {"error": str(e)}
        except (KeyError, ValueError) as e:
            status, answer = HTTPStatus.BAD_REQUEST, {"error": f"cannot be read: {e}"}
        except OSError as e:
            status = HTTPStatus.INSUFFICIENT_STORAGE
            answer = {"error": f"the file cannot be written: {e}"}
        content = msgspec.json.encode(answer)
        self.close_connection = self.close_connection or status is not HTTPStatus.OK
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

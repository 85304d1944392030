"""Serves the pages of all runs below a folder on this machine, as the runs grow.

It listens on loopback, answers GET alone, and reads nothing but what a page of a run is made of: a
path is looked up among pages, never on the disk. A request under another name than this machine's
is refused, so that a web site cannot reach it through a name of its own, and answers may not be
loaded by pages of other origins. It does not keep out other users of this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import logging
import threading
from http import HTTPStatus
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from katgym.errors import KatgymError
from katgym.run_view.folder_site import FolderSite

logger = logging.getLogger(__name__)

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_HOSTS = ("127.0.0.1", "localhost")


class ViewServer:
    """A server of a site's pages; as a context manager it runs in a thread of its own."""

    def __init__(self, site: FolderSite, *, port: int = 0) -> None:
        """Take the port; 0 takes a free one. `OSError` for one that is taken."""
        self.site = site
        self.lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.daemon_threads = True
        self._server.view = self  # type: ignore[attr-defined]
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._thread = threading.Thread(target=self.run, name="katgym-view", daemon=True)

    def run(self) -> None:
        """Answer requests until `close`."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> ViewServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._thread.join()

    def read(self, path: str) -> bytes | None:
        """Return a file of the site; None for a path without one."""
        with self.lock:
            text = self.site.text(path)
        if text is None:
            return None
        if path.endswith(".html"):  # tells the script to look for what is new
            text = text.replace("<body ", "<body data-is-live ", 1)
        return text.encode("utf-8", "backslashreplace")


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server_version = "katgym"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    @property
    def view(self) -> ViewServer:
        found: ViewServer = self.server.view  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        """Answer with a page, or say why not."""
        allowed = {f"{host}:{self.view.port}" for host in _HOSTS}
        if self.headers.get("Host", "").lower() not in allowed:
            told = f"this server answers to {sorted(allowed)[0]} only\n"
            self._send(HTTPStatus.FORBIDDEN, told.encode(), "text/plain")
            return
        path = unquote(urlsplit(self.path).path).lstrip("/")
        if path == "" or path.endswith("/"):
            path += "index.html"
        try:
            content = self.view.read(path)
        except (KatgymError, OSError) as e:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, f"{e}\n".encode(), "text/plain")
            return
        if content is None:
            self._send(HTTPStatus.NOT_FOUND, b"no such page\n", "text/plain")
            return
        kind = _TYPES.get(PurePosixPath(path).suffix, "text/plain")
        self._send(HTTPStatus.OK, content, kind)

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        if status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            status, content = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        with contextlib.suppress(ConnectionError):  # the client has gone
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log a request for those who ask for it."""
        logger.debug(format, *args)

"""A chat API on this machine that answers what it is told to, and asks for a key."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

Answer = Callable[[list[dict[str, Any]]], str]
"""From a conversation's messages to what is said next."""


class ChatServer:
    """Counts what is asked for; each call has 1000 prompt tokens and 100 sampled ones."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.num_calls = 0
        self.num_refused = 0


@contextlib.contextmanager
def chat_server(answer: Answer, *, key: str = "") -> Iterator[ChatServer]:
    """Serve until the end of the context.

    key: "" lets everybody in.
    """

    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if key and self.headers.get("authorization") != f"Bearer {key}":
                with lock:
                    made.num_refused += 1
                return self.send(401, {"error": "no such key"})
            with lock:
                made.num_calls += 1
            message = {"role": "assistant", "content": answer(body["messages"])}
            usage = {"prompt_tokens": 1000, "completion_tokens": 100}
            choices = [{"message": message, "finish_reason": "stop"}]
            return self.send(200, {"choices": choices, "usage": usage})

        def send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = ChatServer(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

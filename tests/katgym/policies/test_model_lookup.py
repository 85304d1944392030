"""Names of models: folders, and ids that the hub is asked for once."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="needs the extra 'hf'")

CHILD = """
import sys
from katgym.policies.model_source import check_model
for name in sys.argv[1:]:
    try:
        print(name, check_model(name))
    except ValueError as e:
        print(name, type(e).__name__, e)
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""


class Hub:
    """A hub that knows no model but org/there; while it is down, connections are closed unread."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_down = False


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/api/models/"):  # its client asks for more than that
                hub.asked.append(self.path)
            if hub.is_down:
                self.connection.close()
                return
            is_there = self.path.startswith("/api/models/org/there")
            self.send_response(200 if is_there else 404)
            if not is_there:
                self.send_header("x-error-code", "RepoNotFound")
            data = b'{"id": "org/there", "modelId": "org/there"}'
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


def check(tmp_path: Path, *names: str) -> list[str]:
    """Return a line for each name, and what was loaded, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *names], capture_output=True, text=True, timeout=300,
        cwd=tmp_path, env={**os.environ, "HF_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_hub_is_asked_once_and_a_folder_not_at_all(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "here").mkdir()
    lines = check(tmp_path, "here", "./nowhere", "org/there", "org/typo")
    assert lines[0] == "here True"
    assert lines[1].startswith("./nowhere UsageError there is no folder './nowhere', and a model")
    assert lines[2] == "org/there False"
    assert "the Hugging Face hub shows no model of that name" in lines[3]
    assert lines[4] == "[]"
    assert [path.rpartition("/")[2] for path in hub.asked] == ["there", "typo"]


def test_what_is_kept_here_is_used_while_the_hub_is_down(tmp_path: Path, hub: Hub) -> None:
    hub.is_down = True
    kept = tmp_path / "home/hub/models--org--kept"
    (kept / "snapshots/abc").mkdir(parents=True)
    (kept / "snapshots/abc/config.json").write_text("{}")
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("abc")
    lines = check(tmp_path, "org/kept", "org/other")
    assert lines[0] == "org/kept True"
    assert "the Hugging Face hub cannot be asked for a model of that name" in lines[1]
    assert len(hub.asked) == 2

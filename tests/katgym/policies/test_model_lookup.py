"""Names of models: folders, ids that the hub is asked for once, and `smollm2`."""

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

from katgym.policies.hf import smollm2
from katgym.policies.model_source import model_source

CHILD = """
import os, sys, urllib.request
from katgym.policies.model_source import check_model
for name in sys.argv[1:]:
    if name == "--down":
        urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/down").close()
        continue
    try:
        print(name, check_model(name))
    except ValueError as e:
        print(name, type(e).__name__, e)
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""


class Hub:
    """A hub that knows no model but org/there; once it is down, connections are closed unread."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_down = False


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/api/models/"):  # its client asks for more than that
                hub.asked.append(self.path.rpartition("/")[2])
            if hub.is_down:
                self.connection.close()
                return
            hub.is_down = self.path == "/down"
            is_there = hub.is_down or self.path.startswith("/api/models/org/there")
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


def test_the_hub_is_asked_once_and_what_is_here_is_used_without_it(
    tmp_path: Path, hub: Hub
) -> None:
    (tmp_path / "here").mkdir()
    kept = tmp_path / "home/hub/models--org--kept"
    (kept / "snapshots/abc").mkdir(parents=True)
    (kept / "snapshots/abc/config.json").write_text("{}")
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("abc")
    names = ("here", "./nowhere", "org/there", "org/typo", "--down", "org/kept", "org/other")
    lines = check(tmp_path, *names)
    assert lines[0] == "here True"
    assert lines[1].startswith("./nowhere UsageError there is no folder './nowhere', and a model")
    assert lines[2] == "org/there False"
    assert "the Hugging Face hub shows no model of that name" in lines[3]
    assert lines[4] == "org/kept True"
    assert "the Hugging Face hub cannot be asked for a model of that name" in lines[5]
    assert lines[6] == "[]"
    assert hub.asked == ["there", "typo", "kept", "other"]


def test_hub_ids_and_folders_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert [model_source(n) for n in ("Qwen/Qwen3-0.6B", "smollm2", ".")] == [
        "Qwen/Qwen3-0.6B", "smollm2", "."
    ]  # fmt: skip


def test_smollm2_is_where_its_package_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(smollm2, "model_directory", lambda: tmp_path / "unpacked")
    assert model_source("smollm2") == str(tmp_path / "unpacked")

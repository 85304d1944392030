"""`katgym plugins search` against package indexes of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from katgym.cli.main import main
from katgym.errors import KatgymError
from katgym.plugins.index_search import PipConfig, pip_config, search_indexes

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
NAMES = ["requests", "katgym-plugin-zoo", "Katgym_Plugin.Apples", "my-katgym-plugin-x", "katgym"]


@contextmanager
def index(content_type: str, body: str, *, status: int = 200) -> Iterator[str]:
    """Serve an index; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_asked_rightly = JSON_TYPE in self.headers["Accept"] and self.path == "/simple/"
            data = body.encode()
            self.send_response(status if is_asked_rightly else 400)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def projects(names: list[str]) -> str:
    return json.dumps({"meta": {"api-version": "1.1"}, "projects": [{"name": n} for n in names]})


def search(text: str, *urls: str) -> dict[str, str]:
    return dict(search_indexes(text, PipConfig(indexes=urls)))


def test_every_index_is_asked_for_what_is_called_a_plugin() -> None:
    page = '<html><body><a href="/simple/x/">\nkatgym-plugin-more</a>\n<a href="/y/">other</a>'
    with index(JSON_TYPE, projects(NAMES)) as first, index("text/html", page) as second:
        assert search("", first, second) == {
            "katgym-plugin-apples": first,
            "katgym-plugin-more": second,
            "katgym-plugin-zoo": first,
        }
        assert search("ZO", first, second) == {"katgym-plugin-zoo": first}
        assert search("plugin", first, second) == {}


def test_an_index_that_answers_something_else_is_an_error(subtests: pytest.Subtests) -> None:
    cases = {"[1]": (200, "no list of projects"), "{": (200, "Expecting"), "{}": (503, "503")}
    for body, (status, reason) in cases.items():
        with subtests.test(body=body), index(JSON_TYPE, body, status=status) as url:
            named = url.replace("http://", "http://user:secret@")
            with pytest.raises(KatgymError, match=reason) as caught:
                search("", named)
            assert f"the package index {url} cannot be asked" in str(caught.value)
            assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_the_command_asks_pips_index(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///nowhere")
    with index(JSON_TYPE, projects(NAMES)) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/")
        assert main(["plugins", "search", "apples", "--json"]) == 0
        row = {"distribution": "katgym-plugin-apples", "installed": "-", "index": url}
        assert json.loads(capsys.readouterr().out) == [row]


def test_the_command_says_plainly_when_there_is_no_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with index(JSON_TYPE, projects([])) as url:
        pass
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    assert main(["plugins", "search"]) == 1
    error = capsys.readouterr().err
    assert f"the package index {url} cannot be asked" in error
    assert "A search needs a network" in error
    assert main(["plugins", "serch"]) == 2
    assert "unknown choice 'serch'. Did you mean 'search'?" in capsys.readouterr().err


def test_pip_is_asked_for_its_indexes_and_variables_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://one.example/simple/\ncert = /a.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://two.example/simple file:///nowhere")
    for name in ("PIP_INDEX_URL", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    assert pip_config() == PipConfig(
        indexes=("https://one.example/simple", "https://two.example/simple"), certificates="/a.pem"
    )

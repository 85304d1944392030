"""Servers in threads: an env of ours by the plugin, an environment of OpenEnv's by OpenEnv."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from katgym.system.listening import listen, url_of

TEMPLATE = {"__ENV_NAME__": "echo", "__ENV_CLASS_NAME__": "Echo", "__ENV_TITLE_NAME__": "Echo"}
"""What `openenv init echo` writes in place of the names of OpenEnv's own example."""


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application on a free port; yield its URL."""
    config = uvicorn.Config(app, loop="asyncio", log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            yield url_of("127.0.0.1", sock)
        finally:
            server.should_exit = True
            thread.join(timeout=300)


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Return what serves an application until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda app: stack.enter_context(serving(app))


@pytest.fixture(scope="session")
def echo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the example of OpenEnv's wheel, an environment that says what it is told."""
    pytest.importorskip("openenv.core.env_server.http_server", reason="needs openenv")
    found = importlib.util.find_spec("openenv")
    assert found is not None and found.submodule_search_locations
    source = Path(found.submodule_search_locations[0]) / "cli/templates/openenv_env"
    folder = tmp_path_factory.mktemp("openenv") / "echo_example"
    for path in ("models.py", "server/__ENV_NAME___environment.py"):
        text, target = (source / path).read_text(), path
        for name, value in TEMPLATE.items():
            text, target = text.replace(name, value), target.replace(name, value)
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(text)
    sys.path.insert(0, str(folder.parent))
    try:
        models = importlib.import_module("echo_example.models")
        environment = importlib.import_module("echo_example.server.echo_environment")
    finally:
        sys.path.remove(str(folder.parent))
    from openenv.core.env_server.http_server import create_fastapi_app

    app = create_fastapi_app(
        environment.EchoEnvironment,
        models.EchoAction,
        models.EchoObservation,
        max_concurrent_envs=8,
    )
    with serving(app) as url:
        yield url

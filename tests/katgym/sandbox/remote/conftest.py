"""Fixture `server`: one `katgym sandboxd` process for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandboxd_process import Server, running_sandboxd


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_sandboxd(tmp_path_factory.mktemp("sandboxd")) as found:
        yield found

"""The suite that every sandbox backend passes, against containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from docker_play import run

from katgym.sandbox.conformance import CHECKS, run_conformance

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("subject", sorted({check.subject for check in CHECKS}))
def test_docker_conforms(
    subject: str,
    docker_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = run(lambda backend: run_conformance(backend, only=[subject]), image=docker_image)
    assert report.results
    for result in report.results:
        with subtests.test(check=result.name):
            if result.passed is None:
                pytest.skip(result.detail)
            assert result.passed, result.detail

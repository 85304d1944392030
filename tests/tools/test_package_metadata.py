"""The built package: no dead link in its description, pins where an upgrade is a decision."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from package_metadata import VARIABLE, RepositoryMetadata

ROOT = Path(__file__).parents[2]
RELATIVE = re.compile(r"\]\((?!https?:)")


def _metadata() -> dict:
    metadata: dict = {}
    RepositoryMetadata(str(ROOT), {}).update(metadata)
    return metadata


def test_without_a_repository_no_link_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    metadata = _metadata()
    assert not RELATIVE.search(metadata["readme"]["text"])
    assert "| Environments | messages in" in metadata["readme"]["text"]
    assert metadata["urls"] == {}


def test_links_lead_into_a_repository_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "https://git.example/k/katgym/")
    metadata = _metadata()
    assert not RELATIVE.search(metadata["readme"]["text"])
    place = "https://git.example/k/katgym/blob/main/docs/concepts/environment.md"
    assert f"[Environments]({place})" in metadata["readme"]["text"]
    assert metadata["urls"]["Issues"] == "https://git.example/k/katgym/issues"


def test_versions_that_are_decisions_reach_users_of_pip() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for name in ("renderers", "math-verify", "latex2sympy2_extended"):
        pin = next(line for line in constraints if line.startswith(f"{name}=="))
        users = {key: [r for r in needs if r.startswith(name)] for key, needs in extras.items()}
        assert {pin} == {r for needs in users.values() for r in needs}


def test_only_one_extra_brings_what_is_under_the_gpl() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert [key for key, needs in extras.items() if any(n.startswith("chess") for n in needs)] == [
        "chess"
    ]
    for page in ("README.md", "pyproject.toml", "envs/katgym_envs/games/README.md"):
        assert "GPL-3.0-or-later" in (ROOT / page).read_text(encoding="utf-8")

"""Sdists come from an index through pip, are checked and kept; none of their code is run."""

from __future__ import annotations

import hashlib
import io
import logging
import tarfile
from pathlib import Path

import pytest

from katgym.errors import InfrastructureError, UsageError
from katgym_envs.swe.packages import fetch_sdist, open_package, read_sdist
from katgym_envs.swe.packages.pip_client import download_sdist

INFLECTION_SHA256 = "1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417"
WHEEL = b"PK\x05\x06" + bytes(18)


def add_sdist(folder: Path, name: str, version: str, *, backend: str | None = None) -> Path:
    """Write an sdist whose build leaves a file where it is run."""
    marker = folder.parent / "was-run"
    evil = f"open({str(marker)!r}, 'w').close()\n"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "setup.py": evil,
        f"{name}/__init__.py": "x = 1\n",
        "tests/test_it.py": "def test_it():\n    assert 1 == 1\n",
    }
    if backend is not None:
        files["pyproject.toml"] = (
            f'[build-system]\nrequires = ["absent-backend"]\nbuild-backend = {backend!r}\n'
            'backend-path = ["."]\n'
        )
        files[f"{backend}.py"] = evil
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{file}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes everything from; no network, no configuration of this machine."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("backend", [None, "own_backend"])
def test_sdist_is_fetched_and_nothing_of_it_run(
    tmp_path: Path, index: Path, backend: str | None
) -> None:
    made = add_sdist(index, "lilac", "1.2", backend=backend)
    sdist = fetch_sdist("lilac", "1.2", cache_dir=tmp_path / "cache")
    assert sdist.sha256 == hashlib.sha256(made.read_bytes()).hexdigest()
    assert sdist.path == tmp_path / "cache" / "lilac" / "1.2" / "lilac-1.2.tar.gz"
    assert read_sdist(sdist.path)["lilac/__init__.py"] == b"x = 1\n"
    assert not (tmp_path / "was-run").exists()
    assert [p.name for p in (tmp_path / "cache" / "lilac").iterdir()] == ["1.2"]


def test_wrong_sha256_is_refused_and_not_kept(tmp_path: Path, index: Path) -> None:
    add_sdist(index, "lilac", "1.2")
    with pytest.raises(UsageError, match=r"lilac==1\.2 has sha256 '[0-9a-f]{64}', expected 'ab'"):
        fetch_sdist("lilac", "1.2", sha256="ab", cache_dir=tmp_path / "cache")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


@pytest.mark.slow
def test_spoilt_cache_is_fetched_again(
    tmp_path: Path, index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_sdist(index, "lilac", "1.2")
    first = fetch_sdist("lilac", "1.2", cache_dir=tmp_path)
    first.path.write_bytes(b"spoilt")
    with caplog.at_level(logging.WARNING):
        again = fetch_sdist("lilac", "1.2", sha256=first.sha256, cache_dir=tmp_path)
    assert again == first
    assert hashlib.sha256(again.path.read_bytes()).hexdigest() == first.sha256
    assert "has another sha256" in caplog.text


@pytest.mark.slow
def test_failures_of_the_index_are_told_apart(tmp_path: Path, index: Path) -> None:
    add_sdist(index, "lilac", "1.2")
    with pytest.raises(
        UsageError, match=r"unknown package 'inflectoin'.*Did you mean 'inflection'"
    ):
        fetch_sdist("inflectoin", "1.0", cache_dir=tmp_path)
    with pytest.raises(UsageError, match=r"unknown version of lilac with an sdist '1\.3'.*'1\.2'"):
        fetch_sdist("lilac", "1.3", cache_dir=tmp_path)


def test_index_out_of_reach_is_an_infrastructure_error(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(InfrastructureError, match="index cannot be reached for lilac==9"):
        fetch_sdist("lilac", "9", cache_dir=tmp_path)


def test_download_has_a_time_limit(tmp_path: Path, index: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"did not finish within 0\.01 s"):
        download_sdist("lilac", "1.2", tmp_path, timeout_s=0.01)


def test_names_and_versions_that_are_none_are_refused(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in ("", "../x", "-r", "a b", "https://x/y", "a/b", ".", "a\n"):
        with subtests.test(name=name), pytest.raises(UsageError, match="a package name is"):
            fetch_sdist(name, "1.0", cache_dir=tmp_path)
    for version in ("", "..", "1..2", "../1", "1 --pre", "*", "-1"):
        refused = pytest.raises(UsageError, match="the version of 'lilac'")
        with subtests.test(version=version), refused:
            fetch_sdist("lilac", version, cache_dir=tmp_path)


def test_unlisted_package_is_laid_out_by_guessing_and_kept(tmp_path: Path, index: Path) -> None:
    made = add_sdist(index, "lilac", "1.2")
    tree = open_package("lilac==1.2", cache_dir=tmp_path)
    assert tree.product == ("lilac/__init__.py",)
    assert tree.test_modules == ("tests/test_it.py",)
    made.unlink()  # what is kept needs no index
    kept = fetch_sdist("lilac", "1.2", cache_dir=tmp_path)
    assert kept.sha256 == tree.package.sha256
    assert fetch_sdist("lilac", "1.2", sha256=kept.sha256, cache_dir=tmp_path) == kept
    with pytest.raises(UsageError, match="'lilac' is not in the table; name a version"):
        open_package("lilac", cache_dir=tmp_path)


@pytest.mark.slow  # it asks the package index
def test_real_package_is_the_same_tree_each_time(tmp_path: Path) -> None:
    trees = [open_package("inflection==0.5.1", cache_dir=tmp_path / part) for part in "ab"]
    assert trees[0].sha256 == trees[1].sha256
    assert trees[0].files == trees[1].files
    assert trees[0].package.sha256 == INFLECTION_SHA256
    assert trees[0].product == ("inflection/__init__.py",)
    assert trees[0].test_modules == ("test_inflection.py",)

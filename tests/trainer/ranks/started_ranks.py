"""Runs on several ranks, started by torchrun as users start them, and what they left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from rl_play import metrics as metrics
from waiting import wait_until

TIMES = ("time/", "rate/", "memory/", "rollout/model_share")
ON_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def start(
    num_ranks: int, kind: str, config: Path, out: Path, *more: str, script: str = ""
) -> subprocess.Popen[str]:
    """Start `katgym train KIND`; script: in place of `-m katgym`."""
    what = [str(Path(__file__).with_name(script))] if script else ["-m", "katgym"]
    return subprocess.Popen(
        [*ON_RANKS, str(num_ranks), *what, "train", kind, str(config), "--out", str(out), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def start_each(num_ranks: int, script: str, *told: str) -> list[subprocess.Popen[str]]:
    """Start the ranks of a run as torchrun does, without one that ends all when one ends."""
    place = {"PYTHONPATH": os.pathsep.join(sys.path), "WORLD_SIZE": str(num_ranks)}
    with held_port() as port:
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
        return [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name(script)), *told],
                env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                pass_fds=(port.fileno(),),
            )
            for rank in range(num_ranks)
        ]  # fmt: skip


def held_port() -> socket.socket:
    """Return a socket that keeps a port free for who asks for it by its number.

    Nobody is given the port who asks for any, as long as the socket is open here or in a process
    that has inherited it; ranks can listen there, as this one does not.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def rank_pids(torchrun: int) -> dict[str, int]:
    """Return the processes of a torchrun, by rank."""
    found = {}
    for child in Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split():
        environ = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {e.decode()[5:]: int(child) for e in environ if e.startswith(b"RANK=")}
    return found


def wait_for_checkpoints(run: subprocess.Popen[str], out: Path, num: int = 2) -> None:
    """Return once a run has written so many."""

    def has_them() -> bool:
        assert run.poll() is None, run.communicate()[1]
        return len(list((out / "checkpoints").glob("step-*"))) >= num

    wait_until(has_them, "checkpoints")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_equal(one: Path, other: Path) -> None:
    """Assert that two runs are the same, bit for bit: all metrics but times, and the model."""
    for mine, its in zip(metrics(one), metrics(other), strict=True):
        assert not {name for name in its if not name.startswith(TIMES) and mine[name] != its[name]}
    files = [folder / "model/model.safetensors" for folder in (one, other)]
    assert files[0].read_bytes() == files[1].read_bytes()


def assert_close(one: Path, other: Path, *, names: tuple[str, ...], limit: float) -> None:
    """Assert that two runs trained alike: metrics of these names, and the model."""
    for mine, its in zip(metrics(one), metrics(other), strict=True):
        assert mine["step"] == its["step"]
        for name in names:
            assert mine[name] == pytest.approx(its[name], rel=limit, abs=limit), name
    wanted = weights(other / "model")
    for name, found in weights(one / "model").items():
        assert float((found - wanted[name]).norm() / wanted[name].norm()) < limit

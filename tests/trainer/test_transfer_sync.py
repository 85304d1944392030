"""Weights over vLLM's transfer engines, as far as they go without a GPU: what is told and refused.

Not here: weights that arrive, which takes GPUs (`benchmarks/gpu.py`).
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sysconfig
from pathlib import Path

import pytest

from katgym.errors import MissingDependencyError, UsageError
from katgym_trainer.config.rl_config import PolicyConfig, SyncKind

TESTS = Path(__file__).parent
TREE = Path(__file__).parents[2]


def test_vllm_is_needed_beside_the_trainer() -> None:
    with pytest.raises(MissingDependencyError, match=r"vllm==0\.32\.0.*sync = 'reload' or 'lora'"):
        importlib.import_module("katgym_trainer.weight_sync.transfer_sync")


def test_a_way_without_a_server_is_refused() -> None:
    assert [kind.value for kind in SyncKind if kind.backend] == ["nccl", "nccl_m2n", "ipc"]
    with pytest.raises(UsageError, match="sync = 'nccl_m2n' changes nothing without a uri"):
        PolicyConfig(sync=SyncKind.NCCL_M2N)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_is_told_of_weights_is_what_is_sent(
    num_ranks: int, tmp_path: Path, vllm_python: str
) -> None:
    own = [TREE, TREE / "trainer", TREE / "kernels", TREE / "envs", TESTS, TREE / "tests/shared"]
    script, found = [vllm_python, str(TESTS / "transfer_plans.py")], tmp_path / "found.json"
    with socket.socket() as held:  # and inherited, without listening: nobody else is given its port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        port = str(held.getsockname()[1])
        processes = [
            subprocess.Popen(
                [*script, str(found), sysconfig.get_path("purelib")],
                env={
                    **os.environ, "PYTHONPATH": os.pathsep.join(map(str, own)), "RANK": str(rank),
                    "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                },
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                pass_fds=(held.fileno(),),
            )
            for rank in range(num_ranks)
        ]  # fmt: skip
    for process in processes:
        told, _ = process.communicate(timeout=300)
        assert process.returncode == 0, told
    result = json.loads(found.read_text())
    assert result.pop("num_weights") > 10
    assert result.pop("has_pieces") is (num_ranks > 1)
    assert result == {"ipc": [], "nccl": [], "nccl_m2n": []}


@pytest.mark.vllm
@pytest.mark.slow
def test_a_model_on_a_cpu_is_refused_by_name(tmp_path: Path, vllm_python: str) -> None:
    code = (
        "import sys; sys.path += sys.argv[1:]\n"
        "import torch\n"
        "from katgym.vllm_server.config import TransferBackend\n"
        "from katgym_trainer.weight_sync.served_weights import ServedModel\n"
        "from katgym_trainer.weight_sync.transfer_sync import address_seen_by, check_model\n"
        "assert address_seen_by('http://127.0.0.1:8000') == '127.0.0.1'\n"
        "check_model(ServedModel(torch.nn.Linear(2, 2)), TransferBackend.NCCL)\n"
    )
    own = [TREE, TREE / "trainer", TREE / "kernels", TREE / "envs"]
    done = subprocess.run(
        [vllm_python, "-c", code, sysconfig.get_path("purelib")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, own))},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "sync = 'nccl' sends from a GPU's memory, and the model is on a cpu" in done.stderr

"""Runs whose policy is a real vLLM server: one that is there, one or two of their own, killed.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/trainer/rl

Not here: runs in one process (`test_rl_run.py`), the ways of weights (`test_weight_sync*.py`), what
servers are asked, call by call (`test_server_pool.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import long_prompts
import pytest
from rl_play import config_text, metrics, register_env, start_run, wait_for_steps
from vllm_servers import save, server_of, tiny_model
from waiting import wait_until

from katgym.cli.main import main
from katgym.rollout_store import RolloutStore

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model(), tmp_path_factory.mktemp("model") / "tiny")


def text_of(model: Path, policy: str, **told: Any) -> str:
    text = config_text(model, **told)
    return text.replace("max_context_tokens = 400", f"max_context_tokens = 400\n{policy}")


def children(pid: int) -> list[int]:
    """Return the processes below one, whichever of its threads started them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return found + [below for child in found for below in children(child)]


@pytest.mark.parametrize("train", ["", "lora_rank = 4"])
def test_a_server_that_is_there_gets_the_weights_after_every_step(
    train: str, model: Path, tmp_path: Path, vllm_python: str
) -> None:
    register_env()
    options: dict[str, Any] = {"has_lora": True, "max_lora_rank": 16}
    with server_of(model, tmp_path / "log", vllm_python, **options) as server:
        name = "ours" if train else "tiny"
        uri = f'uri = "vllm:{server.url}#{name}"'
        config = tmp_path / "rl.toml"
        config.write_text(text_of(model, uri, steps=4, train=train))
        assert main(["train", "rl", str(config), "--out", str(tmp_path / "run")]) == 0
    lines = metrics(tmp_path / "run")
    assert len(lines) == 4
    assert all(0 <= line["sync/difference"] < 1e-4 for line in lines)
    assert {line["rollout/max_staleness"] for line in lines} == {0}
    assert all(line["train/policy_kl"] < 1e-4 for line in lines)  # sampled from what is trained
    assert all(line["rollout/num_invalid"] == 0 for line in lines)


def test_a_server_that_dies_is_started_again_with_the_weights_it_had(
    model: Path, tmp_path: Path, vllm_python: str
) -> None:
    config = tmp_path / "rl.toml"
    policy = f'uri = "vllm"\nserver_python = "{vllm_python}"'
    text = text_of(model, policy, steps=10, rollouts="max_staleness = 1")
    config.write_text(text.replace("learning_rate = 1e-2", "learning_rate = 1e-4"))
    run = tmp_path / "run"
    process = start_run(config, run)
    try:
        wait_for_steps(run, 3, process, limit_s=1200)
        servers = children(process.pid)
        assert len(servers) > 1
        url = (run / "train.log").read_text().split("vLLM serves 'trained' at ")[1].split()[0]
        for route in ("/pause", "/sleep", "/collective_rpc", "/v1/completions"):
            assert httpx.post(f"{url}{route}", json={}, timeout=300).status_code == 401
        assert httpx.get(f"{url}/health", timeout=300).status_code == 200
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert lines[-1]["sync/num_restarts"] == 1
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    assert all(line["sync/difference"] < 1e-4 for line in lines)
    assert max(line["rollout/max_staleness"] for line in lines) <= 1
    assert "vLLM was killed (SIGKILL)" in (run / "train.log").read_text()


def test_a_server_that_is_not_there_is_told_with_what_to_start(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env()
    config = tmp_path / "rl.toml"
    config.write_text(text_of(model, 'uri = "vllm:http://127.0.0.1:9#tiny"'))
    assert main(["train", "rl", str(config), "--out", str(tmp_path / "run")]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "http://127.0.0.1:9" in told and "katgym vllm serve" in told


SAMPLED = "/inference/v1/generate"
NUM_ROLLOUTS = 16
"""Of a step; as many are played ahead, and begin with them."""
SERVERS = """max_context_tokens = 400
uri = "vllm"
server_python = "{python}"
server_args = ["--enforce-eager"]
[[policy.servers]]
tags = ["rollout", "train"]
devices = "0"
[[policy.servers]]
tags = ["rollout"]
devices = "1"
"""


class Run:
    """A run in a process, and what its files say."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process

    def metrics(self) -> list[dict[str, Any]]:
        return metrics(self.folder)

    def num_requests(self, server: int, route: str) -> int:
        """Return how often a route was answered well, by what the server has logged."""
        log = self.folder / f"vllm-{server}.log"
        told = log.read_text().splitlines() if log.exists() else []
        lines = [line for line in told if f'"POST {route}' in line]
        return sum(line.endswith('" 200 OK') for line in lines)

    def until(self, is_so: Callable[[], bool]) -> None:
        def is_so_while_it_runs() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return is_so()

        wait_until(is_so_while_it_runs, "what the run does", limit_s=1200)

    def kill(self, device: str) -> None:
        """Kill all processes of the server that sees a device."""
        killed = 0
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_text()
                is_ours = f"KATGYM_TEST_RUN={self.folder}".encode() in variables
                if is_ours and f"CUDA_VISIBLE_DEVICES={device}".encode() in variables and words:
                    os.kill(int(pid), signal.SIGKILL)
                    killed += 1
        assert killed > 1


@contextlib.contextmanager
def begun(text: str, folder: Path) -> Iterator[Run]:
    """Begin a run in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rl.toml").write_text(text)
    process = start_run(folder / "rl.toml", folder / "run", KATGYM_TEST_RUN=str(folder / "run"))
    try:
        yield Run(folder / "run", process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def run(model: Path, tmp_path: Path, vllm_python: str) -> Iterator[Run]:
    """Begin a run on two servers that goes on until it is told to stop."""
    text = config_text(model, steps=9999, rollouts="max_staleness = 1", train="lora_rank = 4")
    text = text.replace("max_context_tokens = 400\n", SERVERS.format(python=vllm_python))
    with begun(text.replace("learning_rate = 1e-2", "learning_rate = 1e-4"), tmp_path) as run:
        yield run


def test_one_server_sleeps_and_wakes_and_the_other_is_killed_and_mended(run: Run) -> None:
    run.until(lambda: len(run.metrics()) >= 2)
    num_probes = [run.num_requests(server, "/update_weight_version") for server in (0, 1)]
    assert all(run.num_requests(i, SAMPLED) >= NUM_ROLLOUTS + num_probes[i] - 1 for i in (0, 1))

    num_steps, num_sampled = len(run.metrics()), run.num_requests(1, SAMPLED)
    run.kill("1")
    run.until(lambda: len(run.metrics()) >= num_steps + 2)  # the other goes on
    run.until(lambda: run.num_requests(1, SAMPLED) >= num_sampled + NUM_ROLLOUTS)

    run.process.send_signal(signal.SIGINT)
    _, err = run.process.communicate(timeout=600)
    assert run.process.returncode == 128 + signal.SIGINT, err
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    # A step's line tells of the weights that arrived since the line before: of none, at times,
    # where some wait for the trainer and others are on their way while it goes on.
    told = [line for line in lines if "sync/difference" in line]
    assert len(told) >= 2 and told[-1]["sync/num_restarts"] == 1
    assert all(0 <= line["sync/difference"] < 1e-4 for line in told)
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    assert max(line["rollout/max_staleness"] for line in lines) <= 1
    # It sleeps on where the next step's groups are there already.
    assert any(line.get("time/asleep_s", 0.0) > 0 for line in lines)
    num_sleeps = [run.num_requests(0, f"/sleep?level=1&mode={mode}") for mode in ("abort", "keep")]
    assert 0 < sum(num_sleeps) <= len(lines)
    assert num_sleeps[0] > 0  # while the other is up its requests go there
    num_wakes = run.num_requests(0, "/wake_up?tags=weights")
    assert sum(num_sleeps) - num_wakes in (0, 1)  # 1: the run ended while it slept
    assert run.num_requests(1, "/sleep") == 0


LOADED = """max_context_tokens = {max_tokens}
uri = "vllm"
server_python = "{python}"
server_args = ["--enforce-eager"]
"""
TWO_SERVERS = """[[policy.servers]]
devices = "0"
[[policy.servers]]
devices = "1"
"""


def loaded_text(folder: Path, python: str, *, servers: str = "") -> str:
    """Return a run of four steps with 64 rollouts at a time, whose weights get through unchanged.

    folder: gets its model.
    """
    shape = {"max_position_embeddings": long_prompts.MAX_TOKENS}
    model = save(tiny_model(**shape), folder / "tiny")
    env = f"{long_prompts.__file__}:{long_prompts.LongPromptEnv.__name__}"
    text = config_text(model, steps=4, env=env, rollouts="max_staleness = 1\nmax_concurrency = 64")
    policy = LOADED.format(max_tokens=long_prompts.MAX_TOKENS, python=python) + servers
    text = text.replace("max_context_tokens = 400\n", policy)
    text = text.replace("group_size = 4", "group_size = 16").replace("num_tasks = 12\n", "")
    return text.replace("learning_rate = 1e-2", "learning_rate = 1e-12")


def test_a_load_of_long_prompts_comes_back_the_same_when_a_server_is_killed_under_it(
    tmp_path: Path, vllm_python: str
) -> None:
    text = loaded_text(tmp_path, vllm_python, servers=TWO_SERVERS)
    told = []
    for should_kill in (False, True):
        with begun(text, tmp_path / f"kill-{should_kill}") as run:
            if should_kill:
                run.until(lambda run=run: run.num_requests(1, SAMPLED) >= 40)
                run.kill("1")
            _, err = run.process.communicate(timeout=1200)
        assert run.process.returncode == 0, err
        lines = run.metrics()
        assert [line["step"] for line in lines] == [1, 2, 3, 4]
        assert all(line["rollout/num_invalid"] == 0 for line in lines)
        assert all(line["train/num_updates"] == 1 for line in lines)
        assert lines[-1]["sync/num_restarts"] == should_kill
        answers: dict[tuple[str, int], list[list[int]]] = {}  # of a group
        with RolloutStore.open(run.folder / "rollouts", create=False) as store:
            for stored in store.each():
                (turn,) = stored.turns
                assert len(turn.tokens.prompt_ids) > 2048
                rollout = stored.record.rollout
                group = answers.setdefault((rollout.task_id, rollout.seed), [])
                group.append(list(turn.tokens.completion_ids))
        assert [len(group) for group in answers.values()] == [16] * 16
        assert all(len({tuple(ids) for ids in group}) == 16 for group in answers.values())
        told.append({key: sorted(group) for key, group in answers.items()})
    # Which groups are trained on is decided by which came back first: not all are in both.
    both = told[0].keys() & told[1].keys()
    assert len(both) >= 8
    assert {key: told[0][key] for key in both} == {key: told[1][key] for key in both}


def test_a_server_that_every_load_ends_ends_the_run_with_the_cause_and_mended_it_goes_on(
    tmp_path: Path, vllm_python: str
) -> None:
    text = loaded_text(tmp_path, vllm_python)
    fault = text.replace('"--enforce-eager"', '"--enforce-eager", "--enable-chunked-prefill"')
    with begun(fault, tmp_path) as run:
        _, err = run.process.communicate(timeout=1200)
    told = " ".join(err.split())
    assert run.process.returncode == 1, err
    cause = "vLLM ended with exit code 0: RuntimeError: CPU Generator does not use offset"
    for number in (1, 2):
        assert f"is started again, after end {number} of at most 3 without" in told
    *_, error = told.partition("error: ")
    assert "a vLLM server has ended 3 times without finishing a request in between" in error
    assert cause in error and "--no-enable-chunked-prefill" in error
    assert "See stack trace (above)" not in told
    with begun(text, tmp_path) as run:
        _, err = run.process.communicate(timeout=1200)
    assert run.process.returncode == 0, err
    assert [line["step"] for line in run.metrics()] == [1, 2, 3, 4]

"""A run's servers: those that share the trainer's devices sleep, those that die come back.

The servers are those of `hf_server.py`. Not here: real ones (`test_rl_placement_vllm.py`), who is
asked for what (`test_load_balancing.py`), what is wrong in a file (`test_rl_config.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hf_server import HfServer
from hf_server_process import python_for
from peft import PeftModel
from rl_play import config_text, register_env, save_model
from waiting import HANG_S, wait_until, wait_until_async

from katgym.cli.main import main
from katgym.policies.base import Sampling
from katgym_trainer.config.rl_config import EnvConfig, PolicyConfig, RlConfig, RolloutsConfig
from katgym_trainer.config.run_config import ModelConfig
from katgym_trainer.config.server_config import ServerConfig, ServerTag
from katgym_trainer.rl.servers.server_pool import ServerPool
from katgym_trainer.trainer import Trainer

SHARED = (ServerTag.ROLLOUT, ServerTag.TRAIN)
SLEPT = "/sleep?level=2&mode=abort"
"""Beside a server that samples on."""
LINES = 'max_context_tokens = 400\nuri = "vllm"\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny")


def run(
    model: Path, folder: Path, servers: str, *, steps: int, staleness: int, train: str = ""
) -> list[float]:
    """Train on servers, and return how long the shared ones slept in each step."""
    register_env()
    text = config_text(model, steps=steps, rollouts=f"max_staleness = {staleness}", train=train)
    config = folder / "rl.toml"
    config.write_text(text.replace("max_context_tokens = 400\n", LINES + servers))
    assert main(["train", "rl", str(config), "--out", str(folder / "run")]) == 0
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == steps
    assert all(line["rollout/num_invalid"] == 0 for line in lines)
    assert max(line["rollout/max_staleness"] for line in lines) <= staleness
    # A line tells of the weights that arrived since the line before: of none, at times.
    told = [line["sync/difference"] for line in lines if "sync/difference" in line]
    assert told and all(0 <= difference < 1e-4 for difference in told)
    return [line.get("time/asleep_s", 0.0) for line in lines]


def section(server: HfServer, tags: str) -> str:
    return f'[[policy.servers]]\nurl = "{server.url}#tiny"\ntags = {tags}\n'


def lines_at(metrics: Path, step: int) -> int:
    """Return how many lines a run has as soon as it has a step's."""
    if step:
        wait_until(lambda: metrics.read_text().count("\n") >= step, f"the line of step {step}")
    return metrics.read_text().count("\n")


@pytest.mark.slow
def test_a_step_trains_while_weights_are_on_their_way(model: Path, tmp_path: Path) -> None:
    class SlowServer(HfServer):
        """Reads weights once their step has its line."""

        def _reload(self, body: Any) -> dict[str, Any]:
            path = Path(body["kwargs"]["weights_path"])
            num_lines = lines_at(tmp_path / "run/metrics.jsonl", int(path.name[1:]))
            noted.append((path.name, num_lines, path.exists()))
            return super()._reload(body)

    noted: list[tuple[str, int, bool]] = []
    with SlowServer(model) as server:
        run(model, tmp_path, section(server, '["rollout"]'), steps=4, staleness=1)
    assert [name for name, *_ in noted] == ["v0", "v0", "v1", "v2", "v3", "v4"]
    # A step's line is written before its weights are there.
    assert [num for _, num, _ in noted[2:]] == [1, 2, 3, 4]
    assert all(there for *_, there in noted)


class LoraServer(HfServer):
    """Has adapters, each a model of its own; it loads them once their step has its line."""

    def __init__(self, folder: Path, metrics: Path) -> None:
        super().__init__(folder)
        self.routes.append("/v1/load_lora_adapter")
        self.loaded: dict[str, Any] = {}
        self.noted: list[tuple[str, int]] = []
        """Adapters, each with the steps that the run had when it was loaded."""
        self._metrics = metrics

    def reply(self, path: str, body: Any, query: str = "") -> Any:
        if path == "/v1/load_lora_adapter":
            name = body["lora_name"].split("-")[0]
            self.noted.append((name, lines_at(self._metrics, int(name.split("@v")[1]))))
            base = copy.deepcopy(self.model)
            self.loaded[body["lora_name"]] = PeftModel.from_pretrained(base, body["lora_path"])
            card = {"id": body["lora_name"], "root": body["lora_path"], "parent": "base"}
            self.cards.append({**card, "max_model_len": 400})
            return {}
        if path == "/v1/unload_lora_adapter":
            self.cards = [card for card in self.cards if card["id"] != body["lora_name"]]
            return {}
        return super().reply(path, body, query)

    def model_of(self, name: str) -> Any:
        return self.loaded[name].eval()


@pytest.mark.slow  # 10 s
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_step_trains_while_an_adapter_is_on_its_way(model: Path, tmp_path: Path) -> None:
    with LoraServer(model, tmp_path / "run/metrics.jsonl") as server:
        servers = section(server, '["rollout"]')
        run(model, tmp_path, servers, steps=4, staleness=1, train="lora_rank = 2")
    assert [name for name, _ in server.noted] == [f"tiny@v{version}" for version in range(5)]
    # A step's line is written before its adapter is there; which the probe has compared with what
    # was trained on meanwhile, as it was.
    assert [num for _, num in server.noted[1:]] == [1, 2, 3, 4]


@pytest.mark.slow
def test_weights_that_do_not_arrive_end_the_run_though_it_waits_for_groups(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class FailingServer(HfServer):
        def _reload(self, body: Any) -> dict[str, Any]:
            if not body["kwargs"]["weights_path"].endswith("v2"):
                super()._reload(body)
            return {"results": [None]}

    with FailingServer(model) as server, pytest.raises(AssertionError):
        run(model, tmp_path, section(server, '["rollout"]'), steps=40, staleness=1)
    assert "the weights of" in " ".join(capsys.readouterr().err.split())
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) in (2, 3)


A_STEP = ["/sleep?level=2&mode=keep", "/wake_up?tags=weights", "reload", "/wake_up"]


@pytest.mark.slow
def test_a_server_on_the_trainers_devices_sleeps_while_others_sample(
    model: Path, tmp_path: Path
) -> None:
    with HfServer(model) as shared, HfServer(model) as separate:
        servers = section(shared, '["rollout", "train"]') + section(separate, '["rollout"]')
        slept_s = run(model, tmp_path, servers, steps=3, staleness=1)
        # It sleeps on where the next step's groups are there already.
        num = sum(seconds > 0 for seconds in slept_s)
        assert slept_s[-1] > 0
        assert shared.calls == ["/wake_up", "reload", "reload", *[SLEPT, *A_STEP[1:]] * num]
        assert separate.calls == ["reload"] * 5
        assert shared.num_sampled > 0 and separate.num_sampled > 0
        assert (shared.version, separate.version) == ("3", "3")


@pytest.mark.slow
def test_sampling_and_training_take_turns_where_all_devices_are_shared(
    model: Path, tmp_path: Path
) -> None:
    with HfServer(model) as one, HfServer(model) as two:
        servers = "".join(section(server, '["rollout", "train"]') for server in (one, two))
        run(model, tmp_path, servers, steps=2, staleness=0)
        assert one.calls == two.calls == ["/wake_up", "reload", "reload", *A_STEP * 2]
        assert one.num_sampled > 0 and two.num_sampled > 0


def test_a_server_that_cannot_sleep_is_told_with_what_to_start(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env()
    with HfServer(model) as server:
        server.routes.remove("/sleep")
        config = tmp_path / "rl.toml"
        servers = section(server, '["rollout", "train"]')
        text = config_text(model).replace("max_context_tokens = 400\n", LINES + servers)
        config.write_text(text)
        assert main(["train", "rl", str(config), "--out", str(tmp_path / "run")]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"{server.url} has the tag 'train' and cannot sleep" in told
    assert "--rl, on a GPU with -- --enable-sleep-mode" in told


@contextlib.asynccontextmanager
async def own_pool(model: Path, folder: Path, *tags: tuple[ServerTag, ...]) -> AsyncIterator[Pool]:
    """Start servers of the run's own, each a process."""
    servers = tuple(
        ServerConfig(tags=tag, devices=str(i), max_concurrency=7) for i, tag in enumerate(tags)
    )
    policy = PolicyConfig(
        uri="vllm", servers=servers, server_python=str(python_for(folder)), max_context_tokens=400
    )
    config = RlConfig(
        model=ModelConfig(path=str(model)), envs=(EnvConfig(id="katgym/Echo-v0"),), policy=policy
    )
    with contextlib.closing(Trainer(str(model), "grpo")) as trainer:
        pool = await ServerPool(trainer, config, folder=folder).start()
        try:
            yield Pool(pool, trainer)
        finally:
            await pool.aclose()


class Pool:
    """A pool with its trainer."""

    def __init__(self, pool: ServerPool, trainer: Trainer) -> None:
        self.pool, self.trainer = pool, trainer

    async def ask(self, session_id: str) -> int:
        """Return how many tokens are sampled."""
        generated = await self.pool.policy.generate(
            [5, 6],
            sampling=Sampling(temperature=0.0),
            max_tokens=4,
            seed=None,
            session_id=session_id,
        )
        return len(generated.token_ids)

    def url(self, number: int) -> str:
        return str(self.pool.policy.describe()["servers"][number]["url"])

    def started(self, number: int) -> str:
        """Return where a server is, or will be once it has the weights."""
        return self.pool._servers[number].url

    def kill(self, number: int) -> None:
        """Kill a server's process and its supervisor."""
        port = str(urlsplit(self.started(number)).port)
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if "--port" in words and words[words.index("--port") + 1] == port:
                    os.kill(int(pid), signal.SIGKILL)

    async def step(self) -> dict[str, float]:
        """Take a step that changes nothing, and push it."""
        async with self.pool.training():
            self.trainer.step_rows([])
        return await self.pool.push(self.trainer.num_steps)


@pytest.mark.slow
def test_a_shared_server_that_dies_asleep_is_started_again_while_the_other_goes_on(
    model: Path, tmp_path: Path
) -> None:
    async def go() -> None:
        async with own_pool(model, tmp_path, SHARED, (ServerTag.ROLLOUT,)) as own:
            first = own.url(0)
            assert [await own.ask("a"), await own.ask("b")] == [4, 4]
            async with own.pool.training():
                own.kill(0)
                assert await own.ask("a") == 4  # moved
                own.trainer.step_rows([])
            metrics = await own.pool.push(1)
            assert metrics["sync/difference"] < 1e-4
            await wait_until_async(lambda: own.url(0) != first, "another server")
            metrics = await own.step()
            assert (metrics["sync/num_restarts"], own.trainer.num_steps) == (1, 2)
            assert metrics["time/asleep_s"] > 0
            own.kill(1)
            assert await own.ask("a") == 4  # lost, and asked of the other
        assert sorted(path.name for path in tmp_path.glob("*.log")) == ["vllm-0.log", "vllm-1.log"]

    asyncio.run(go())


class HaltingServer(HfServer):
    """Stands still when it has sampled so many tokens, until it is put to sleep."""

    num_left = 0

    def model_of(self, name: str) -> Any:
        self.num_left -= 1
        if self.num_left == 0:
            self._is_running.clear()
        return super().model_of(name)


@pytest.mark.slow
def test_a_server_that_goes_to_sleep_hands_its_requests_over(model: Path, tmp_path: Path) -> None:
    async def go(first: HaltingServer, second: HfServer) -> None:
        servers = (
            ServerConfig(tags=SHARED, url=f"{first.url}#tiny"),
            ServerConfig(url=f"{second.url}#tiny"),
        )
        config = RlConfig(
            model=ModelConfig(path=str(model)),
            envs=(EnvConfig(id="katgym/Echo-v0"),),
            policy=PolicyConfig(uri="vllm", servers=servers, max_context_tokens=400),
        )
        with contextlib.closing(Trainer(str(model), "grpo")) as trainer:
            pool = await ServerPool(trainer, config, folder=tmp_path).start()
            try:
                first.num_left = 100
                asking = [
                    asyncio.create_task(
                        pool.policy.generate(
                            [5, 6], sampling=Sampling(temperature=0.0), max_tokens=300, seed=None,
                            session_id=name,
                        )
                    )
                    for name in "ab"
                ]  # fmt: skip
                await wait_until_async(lambda: not first._is_running.is_set(), "its standing still")
                async with pool.training():
                    both = await asyncio.gather(*asking)  # also what the first had
                    assert second.num_sampled == 2
                    trainer.step_rows([])
                await pool.push(1)
                assert [call for call in first.calls if "sleep" in call] == [SLEPT]
            finally:
                await pool.aclose()
        # Greedy: what was handed over is what one server alone would have sampled.
        one, other = both
        assert list(one.token_ids) == list(other.token_ids)
        assert len(one.token_ids) == len(one.policy_logprobs) == 300
        assert list(one.policy_logprobs) == pytest.approx(list(other.policy_logprobs), abs=1e-4)

    with HaltingServer(model) as first, HfServer(model) as second:
        asyncio.run(go(first, second))


def test_a_shared_server_sleeps_on_while_the_trainer_does_not_wait(
    model: Path, tmp_path: Path
) -> None:
    async def go(shared: HfServer, apart: HfServer) -> None:
        servers = (
            ServerConfig(tags=SHARED, url=f"{shared.url}#tiny"),
            ServerConfig(url=f"{apart.url}#tiny"),
        )
        config = RlConfig(
            model=ModelConfig(path=str(model)),
            envs=(EnvConfig(id="katgym/Echo-v0"),),
            policy=PolicyConfig(uri="vllm", servers=servers, max_context_tokens=400),
            rollouts=RolloutsConfig(max_staleness=1),
        )
        with contextlib.closing(Trainer(str(model), "grpo")) as trainer:
            pool = await ServerPool(trainer, config, folder=tmp_path).start()
            own = Pool(pool, trainer)
            try:
                shared.calls.clear()
                for version in (1, 2):
                    async with pool.training():
                        trainer.step_rows([])
                    push = await pool.begin_push(version, should_wake=False)
                    assert not push.done()  # the trainer goes on meanwhile
                    metrics = await push
                    assert "time/asleep_s" not in metrics
                    assert (shared.calls, apart.version) == ([SLEPT], str(version))
                    assert await own.ask("a") == 4
                async with pool.training():
                    trainer.step_rows([])
                metrics = (await pool.begin_push(3)).result()
                assert metrics["time/asleep_s"] > 0
                assert shared.calls == [SLEPT, *A_STEP[1:]]
                assert (shared.version, apart.version) == ("3", "3")
            finally:
                await pool.aclose()

    with HfServer(model) as shared, HfServer(model) as apart:
        asyncio.run(go(shared, apart))


@pytest.mark.slow
def test_a_server_that_ends_before_it_is_up_again_is_started_once_more(
    model: Path, tmp_path: Path
) -> None:
    async def go() -> None:
        async with own_pool(model, tmp_path, (ServerTag.ROLLOUT,)) as own:
            first = own.started(0)
            script, fail = tmp_path / "python", tmp_path / "fail"
            once = f"if [ -e {fail} ]; then rm {fail}; exit 3; fi\n"
            script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{once}"))
            fail.touch()
            async with own.pool.training():  # it gets no weights meanwhile
                own.kill(0)
                await wait_until_async(lambda: own.started(0) != first, "another server")
                own.kill(0)
            metrics = await own.pool.push(own.trainer.num_steps)
            assert metrics["sync/num_restarts"] == 3  # one did not start
            state = own.pool._servers[0].state()
            assert state.config.max_concurrency == 7
            assert await own.ask("a") == 4

    asyncio.run(go())


@pytest.mark.slow
def test_nobody_waits_for_a_server_whose_watch_failed(model: Path, tmp_path: Path) -> None:
    async def go() -> None:
        async with own_pool(model, tmp_path, SHARED) as own:
            log = tmp_path / "vllm.log"
            log.unlink()
            log.mkdir()  # what starts it again fails with an error that is not ours
            async with own.pool.training():
                waiting = asyncio.create_task(own.ask("a"))
                own.kill(0)
            with pytest.raises(IsADirectoryError):
                await asyncio.wait_for(waiting, HANG_S)
            with pytest.raises(IsADirectoryError):
                await own.ask("b")
            with pytest.raises(IsADirectoryError):
                await own.pool.push(0)

    asyncio.run(go())

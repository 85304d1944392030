"""A run's servers: those that share the trainer's devices sleep, those that die come back.

The servers are those of `hf_server.py`. Not here: real ones (`test_rl_vllm.py`), who is
asked for what (`test_load_balancing.py`), what is wrong in a file (`test_rl_config.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hf_server import HfServer
from hf_server_process import python_for
from in_loop import in_loop
from peft import PeftModel
from rl_play import config_text, metrics, register_env
from waiting import HANG_S, wait_until, wait_until_async

from katgym.cli.main import main
from katgym.policies.base import Sampling
from katgym.policies.token_policy import Generated
from katgym.vllm_server import ServerError
from katgym_trainer.config.rl_config import EnvConfig, PolicyConfig, RlConfig, RolloutsConfig
from katgym_trainer.config.run_config import ModelConfig
from katgym_trainer.config.server_config import ServerConfig, ServerTag
from katgym_trainer.rl.servers.server_pool import ServerPool
from katgym_trainer.trainer import Trainer

SHARED = (ServerTag.ROLLOUT, ServerTag.TRAIN)
SLEPT = "/sleep?level=2&mode=abort"
"""Beside a server that samples on."""
LINES = 'max_context_tokens = 400\nuri = "vllm"\n'


def run(
    model: Path, folder: Path, servers: str, *, steps: int, staleness: int, train: str = ""
) -> list[float]:
    """Train on servers, and return how long the shared ones slept in each step."""
    register_env()
    text = config_text(model, steps=steps, rollouts=f"max_staleness = {staleness}", train=train)
    config = folder / "rl.toml"
    config.write_text(text.replace("max_context_tokens = 400\n", LINES + servers))
    assert main(["train", "rl", str(config), "--out", str(folder / "run")]) == 0
    lines = metrics(folder / "run")
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
async def pool_of(
    model: Path, folder: Path, *servers: ServerConfig, max_staleness: int = 0, python: str = ""
) -> AsyncIterator[Pool]:
    """Have a pool of servers; python: of those that it starts."""
    config = RlConfig(
        model=ModelConfig(path=str(model)),
        envs=(EnvConfig(id="katgym/Echo-v0"),),
        policy=PolicyConfig(
            uri="vllm", servers=servers, server_python=python, max_context_tokens=400
        ),
        rollouts=RolloutsConfig(max_staleness=max_staleness),
    )
    with contextlib.closing(Trainer(str(model), "grpo")) as trainer:
        pool = await ServerPool(trainer, config, folder=folder).start()
        try:
            yield Pool(pool, trainer)
        finally:
            await pool.aclose()


def own_pool(
    model: Path, folder: Path, *tags: tuple[ServerTag, ...]
) -> contextlib.AbstractAsyncContextManager[Pool]:
    """Start servers of the run's own, each a process."""
    servers = [
        ServerConfig(tags=tag, devices=str(i), max_concurrency=7) for i, tag in enumerate(tags)
    ]
    return pool_of(model, folder, *servers, python=str(python_for(folder)))


class Pool:
    """A pool with its trainer."""

    def __init__(self, pool: ServerPool, trainer: Trainer) -> None:
        self.pool, self.trainer = pool, trainer

    async def generate(self, session_id: str, max_tokens: int) -> Generated:
        return await self.pool.policy.generate(
            [5, 6],
            sampling=Sampling(temperature=0.0),
            max_tokens=max_tokens,
            seed=None,
            session_id=session_id,
        )

    async def ask(self, session_id: str) -> int:
        """Return how many tokens are sampled."""
        return len((await self.generate(session_id, 4)).token_ids)

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
@in_loop
async def test_a_shared_server_that_dies_asleep_is_started_again_while_the_other_goes_on(
    model: Path, tmp_path: Path
) -> None:
    async with own_pool(model, tmp_path, SHARED, (ServerTag.ROLLOUT,)) as own:
        first = own.url(0)
        assert [await own.ask("a"), await own.ask("b")] == [4, 4]
        async with own.pool.training():
            own.kill(0)
            assert await own.ask("a") == 4  # moved
            own.trainer.step_rows([])
        assert (await own.pool.push(1))["sync/difference"] < 1e-4
        await wait_until_async(lambda: own.url(0) != first, "another server")
        told = await own.step()
        assert (told["sync/num_restarts"], own.trainer.num_steps) == (1, 2)
        assert told["time/asleep_s"] > 0
        own.kill(1)
        assert await own.ask("a") == 4  # lost, and asked of the other
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["vllm-0.log", "vllm-1.log"]


class HaltingServer(HfServer):
    """Stands still when it has sampled so many tokens, until it is put to sleep."""

    num_left = 0

    def model_of(self, name: str) -> Any:
        self.num_left -= 1
        if self.num_left == 0:
            self._is_running.clear()
        return super().model_of(name)


@pytest.mark.slow
@in_loop
async def test_a_server_that_goes_to_sleep_hands_its_requests_over(
    model: Path, tmp_path: Path
) -> None:
    with HaltingServer(model) as first, HfServer(model) as second:
        shared = ServerConfig(tags=SHARED, url=f"{first.url}#tiny")
        async with pool_of(model, tmp_path, shared, ServerConfig(url=f"{second.url}#tiny")) as own:
            first.num_left = 100
            asking = [asyncio.create_task(own.generate(name, 300)) for name in "ab"]
            await wait_until_async(lambda: not first._is_running.is_set(), "its standing still")
            async with own.pool.training():
                one, other = await asyncio.gather(*asking)  # also what the first had
                assert second.num_sampled == 2
                own.trainer.step_rows([])
            await own.pool.push(1)
            assert [call for call in first.calls if "sleep" in call] == [SLEPT]
        # Greedy: what was handed over is what one server alone would have sampled.
        assert list(one.token_ids) == list(other.token_ids)
        assert len(one.token_ids) == len(one.policy_logprobs) == 300
        assert list(one.policy_logprobs) == pytest.approx(list(other.policy_logprobs), abs=1e-4)


@in_loop
async def test_a_shared_server_sleeps_on_while_the_trainer_does_not_wait(
    model: Path, tmp_path: Path
) -> None:
    with HfServer(model) as shared, HfServer(model) as apart:
        servers = (
            ServerConfig(tags=SHARED, url=f"{shared.url}#tiny"),
            ServerConfig(url=f"{apart.url}#tiny"),
        )
        async with pool_of(model, tmp_path, *servers, max_staleness=1) as own:
            shared.calls.clear()
            for version in (1, 2):
                async with own.pool.training():
                    own.trainer.step_rows([])
                push = await own.pool.begin_push(version, should_wake=False)
                assert not push.done()  # the trainer goes on meanwhile
                assert "time/asleep_s" not in await push
                assert (shared.calls, apart.version) == ([SLEPT], str(version))
                assert [state.is_held for state in own.pool.states()] == [True, False]
                assert await own.ask("a") == 4
            async with own.pool.training():
                own.trainer.step_rows([])
            told = (await own.pool.begin_push(3)).result()
            assert told["time/asleep_s"] > 0
            assert shared.calls == [SLEPT, *A_STEP[1:]]
            assert (shared.version, apart.version) == ("3", "3")
            assert [state.is_held for state in own.pool.states()] == [False, False]


@pytest.mark.slow
@in_loop
async def test_a_server_that_ends_before_it_is_up_again_is_started_once_more(
    model: Path, tmp_path: Path
) -> None:
    async with own_pool(model, tmp_path, (ServerTag.ROLLOUT,)) as own:
        first = own.started(0)
        script, fail = tmp_path / "python", tmp_path / "fail"
        once = f"if [ -e {fail} ]; then rm {fail}; exit 3; fi\n"
        script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{once}"))
        fail.touch()
        own.kill(0)
        await wait_until_async(lambda: own.started(0) != first, "another server")
        told = await own.pool.push(own.trainer.num_steps)
        assert told["sync/num_restarts"] == 2  # one did not start
        state = own.pool._servers[0].state()
        assert state.config.max_concurrency == 7
        assert await own.ask("a") == 4


@pytest.mark.slow
@in_loop
async def test_a_server_that_ends_again_and_again_without_a_finished_request_is_given_up(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with own_pool(model, tmp_path, (ServerTag.ROLLOUT,)) as own:

        async def kill(*, is_last: bool = False) -> None:
            server, before = own.pool._servers[0], own.started(0)
            own.kill(0)
            if is_last:
                await wait_until_async(lambda: server.error, "its end")
            else:
                await wait_until_async(lambda: server.is_up and server.url != before, "another")

        for num_kills in (2, 1):  # with a request in between they do not add up
            for _ in range(num_kills):
                await kill()
            assert await own.ask("a") == 4
        for _ in range(2):
            await kill()
        await kill(is_last=True)
        with pytest.raises(
            ServerError, match="ended 3 times without finishing a request"
        ) as caught:
            await own.ask("b")
        assert "The last time: vLLM was killed (SIGKILL)" in str(caught.value)
        with pytest.raises(ServerError, match="ended 3 times"):
            await own.pool.push(0)
    assert "after end 2 of at most 3 without a finished request" in caplog.text


@pytest.mark.slow
@in_loop
async def test_nobody_waits_for_a_server_whose_watch_failed(model: Path, tmp_path: Path) -> None:
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

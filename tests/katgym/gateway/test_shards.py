"""Several gateways by session: placing, one control surface, kills of any of them.

Not here: one gateway (`test_gateway_sessions.py`); CPU per call (`benchmarks/gateway_shards.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from waiting import wait_until

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym.gateway import GatewayClient
from katgym.gateway.shards.merged_metrics import merge_metrics
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.store_folders import prepare_folder, shard_of, store_folders

from .scripted_server import ScriptedServer
from .served_gateway import OWNER

NUM = 3
NAMES = [f"g{number}" for number in range(9)]


class Fleet:
    """`katgym gateway --shards` in a process of its own."""

    def __init__(self, folder: Path, upstream: str, *options: str) -> None:
        self.folder = folder
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "katgym", "gateway", "--upstream", upstream, "--port", "0",
             "--store", str(folder), "--shards", str(NUM), *options],
            env={**os.environ, "KATGYM_GATEWAY_KEY": OWNER, "PYTHONPATH": path},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("gateway on "), line
        self.url = line.split()[2].rstrip(",")
        self.client = httpx.Client(base_url=self.url, timeout=300)

    def owner(self, method: str, path: str, **body: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {OWNER}"}
        return self.client.request(method, path, json=body or None, headers=headers)

    def make(self, session_id: str, **options: object) -> dict[str, str]:
        answer = self.owner("POST", "/sessions", id=session_id, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self) -> dict[str, object]:
        return self.owner("GET", "/control/status").json()

    def pids(self) -> list[int]:
        return [shard["pid"] for shard in self.status()["shards"]]

    def kill(self, index: int) -> None:
        """Kill a shard once it is up, and return when the front knows."""
        wait_until(lambda: self.shard(index)["is_up"], f"shard {index}")
        before = self.pids()[index]
        os.kill(before, signal.SIGKILL)
        wait_until(
            lambda: not self.shard(index)["is_up"] or self.shard(index)["pid"] != before,
            f"the end of shard {index}",
        )

    def shard(self, index: int) -> dict[str, object]:
        return self.status()["shards"][index]

    def wait_until_up(self) -> None:
        wait_until(lambda: all(shard["is_up"] for shard in self.status()["shards"]), "all shards")

    def close(self, number: int = signal.SIGINT) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=300)
        return self.process.returncode


@contextlib.contextmanager
def fleet(folder: Path, upstream: str, *options: str) -> Iterator[Fleet]:
    found = Fleet(folder, upstream, "--set", "answering=chat", *options)
    try:
        yield found
    finally:
        found.close()


def is_over(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def say(url: str, key: str, text: str, **headers: str) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    named = {"Authorization": f"Bearer {key}", **headers}
    return httpx.post(f"{url}/chat/completions", json=body, headers=named, timeout=300)


def test_an_id_is_always_of_the_same_shard_and_shards_have_about_as_many():
    counts = [0] * 7
    for number in range(7000):
        counts[shard_of(f"session-{number}", 7)] += 1
    assert shard_of("session-1", 7) == shard_of("session-1", 7) == 1
    assert all(850 < count < 1150 for count in counts)


def test_a_folder_of_stores_is_for_so_many_gateways(tmp_path: Path, capsys):
    folder = tmp_path / "games"
    folder.mkdir()
    assert store_folders(folder) == [folder]
    prepare_folder(folder, 3)
    prepare_folder(folder, 3)
    assert store_folders(folder) == [folder / f"gateway-{index}" for index in range(3)]
    with pytest.raises(UsageError, match=r"stores of 3 gateways.*--shards 3"):
        prepare_folder(folder, 2)
    with pytest.raises(UsageError, match=r"several gateways: name one of them, as .*gateway-0"):
        RolloutStore.open(folder)
    command = ["gateway", "--upstream", "http://127.0.0.1:9", "--auth", "none", "--port", "0"]
    assert main([*command, "--store", str(folder)]) == 2
    assert "go on with --shards 3" in " ".join(capsys.readouterr().err.split())
    RolloutStore.open(tmp_path / "one").close()
    assert main([*command, "--store", str(tmp_path / "one"), "--shards", "2"]) == 2
    assert "is the store of one gateway" in " ".join(capsys.readouterr().err.split())
    (folder / "gateways.json").write_text("{")
    with pytest.raises(UsageError, match=r'cannot be read.*"num_shards": 0'):
        store_folders(folder)


def test_shards_that_count_sessions_want_keys(tmp_path: Path, capsys):
    command = ["gateway", "--upstream", "http://127.0.0.1:9", "--auth", "none", "--port", "0"]
    command += ["--max-staleness", "1", "--sessions-per-version", "2", "--shards", "2"]
    assert main([*command, "--store", str(tmp_path / "s")]) == 2
    assert "with shards wants auth 'keys'" in " ".join(capsys.readouterr().err.split())


def test_metrics_of_shards_are_one_text_with_a_label():
    one = '# HELP a Calls.\n# TYPE a counter\na{route="x y"} 3\na 1\n# TYPE b gauge\nb 2\n'
    assert merge_metrics({"0": one, "1": "# TYPE b gauge\nb 5\n"}) == (
        '# HELP a Calls.\n# TYPE a counter\na{shard="0",route="x y"} 3\na{shard="0"} 1\n'
        '# TYPE b gauge\nb{shard="0"} 2\nb{shard="1"} 5\n'
    )


@pytest.mark.slow
def test_sessions_are_divided_and_one_control_surface_has_all(tmp_path: Path, capfd):
    options = ("--max-staleness", "0", "--sessions-per-version", "12")
    with ScriptedServer() as server, fleet(tmp_path / "s", server.url, *options) as gateway:
        made = {name: gateway.make(name) for name in NAMES}
        ports = {name: session["openai_base_url"].split("/s/")[0] for name, session in made.items()}
        assert len(set(ports.values())) == NUM and gateway.url not in ports.values()
        # An agent calls its own shard, or the front by id or by key.
        for name, session in made.items():
            key = session["key"]
            for url in (session["openai_base_url"], f"{gateway.url}/s/{name}/v1"):
                assert say(url, key, f"hi {name}").status_code == 200
            assert say(f"{gateway.url}/v1", key, f"hi {name}").status_code == 200
        streamed = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        key = {"Authorization": f"Bearer {made['g1']['key']}"}
        answer = gateway.client.post("/s/g1/v1/chat/completions", json=streamed, headers=key)
        assert answer.text.endswith("data: [DONE]\n\n")
        # Strangers and other sessions' shards.
        assert say(f"{gateway.url}/v1", "sk-katgym-1.none", "x").status_code == 401
        assert say(f"{gateway.url}/v1", "other", "x").status_code == 401
        assert say(f"{gateway.url}/s/g1/v1", made["g2"]["key"], "x").status_code == 401
        wrong = next(url for url in ports.values() if url != ports["g1"])
        assert say(f"{wrong}/s/g1/v1", made["g1"]["key"], "x").status_code == 401
        for path in ("/control/resume", "/sessions", "/s/g1/finish"):
            refused = httpx.post(ports["g1"] + path, headers={"Authorization": f"Bearer {OWNER}"})
            assert (refused.status_code, gateway.url in refused.text) == (404, True)
        assert gateway.client.get("/control/status").status_code == 401
        assert gateway.client.get("/nothing").status_code == 404
        # What is asked again is the same session; what is not as it was is refused.
        assert gateway.make("g3") == made["g3"]
        assert gateway.owner("POST", "/sessions", id="g3", group_id="x").status_code == 400
        assert gateway.owner("POST", "/sessions", id="a b").status_code == 400
        # Lists, rewards, metrics of all.
        page = gateway.owner("GET", "/sessions?limit=2").json()
        names = [session["session_id"] for session in page["sessions"]]
        while page["next"] is not None:
            page = gateway.owner("GET", f"/sessions?limit=2&after={page['next']}").json()
            names += [session["session_id"] for session in page["sessions"]]
        assert sorted(names) == sorted(made)
        assert gateway.owner("POST", "/s/g4/finish", reward=0.5).json()["reward"] == 0.5
        metrics = gateway.owner("GET", "/metrics").text
        assert metrics.count("# TYPE katgym_gateway_calls_total counter") == 1
        calls = [line for line in metrics.splitlines() if "calls_total{shard" in line]
        assert sum(float(li.split()[-1]) for li in calls if 'status="200"' in li) == 28
        # Admission counts all: 12 may begin, held-out ones and replaced ones beside them. A group
        # is whole in one store.
        group = [gateway.make(name, group_id="France") for name in ("g9", "g10", "g11")]
        assert len({session["openai_base_url"].split("/s/")[0] for session in group}) == 1
        assert gateway.owner("GET", "/s/g11").json()["group_id"] == "France"
        assert gateway.owner("POST", "/sessions", id="g10", group_id="Spain").status_code == 400
        assert gateway.owner("POST", "/sessions", id="g12").status_code == 429
        gateway.make("held", metadata={"is_held_out": True})
        assert gateway.owner("POST", "/control/replace", num_sessions=1, key="g").status_code == 200
        assert gateway.owner("POST", "/control/replace", num_sessions=1, key="g").status_code == 200
        gateway.make("g12")
        assert gateway.owner("POST", "/sessions", id="g13").status_code == 429
        assert gateway.status()["num_begun"] == 12
        # Weights move: no shard lets a call out, one that is killed meanwhile neither.
        assert gateway.owner("POST", "/control/pause").json()["is_paused"]
        gateway.kill(shard_of("g1", NUM))
        waiting = threading.Thread(
            target=say, args=(made["g1"]["openai_base_url"], made["g1"]["key"], "w")
        )
        waiting.start()
        gateway.wait_until_up()
        wait_until(lambda: gateway.status()["num_waiting"] == 1, "the call that waits")
        assert [shard["is_paused"] for shard in gateway.status()["shards"]] == [True] * NUM
        assert gateway.client.get("/ready").status_code == 503
        assert "shard 2: paused" in gateway.client.get("/ready").text
        adapter = {"version": 1, "model": "tiny"}
        assert gateway.owner("POST", "/control/resume", **adapter).json()["version"] == 1
        waiting.join()
        assert gateway.owner("POST", "/control/resume", version=0).status_code == 400
        assert [shard["version"] for shard in gateway.status()["shards"]] == [1] * NUM
        assert gateway.client.get("/ready").json() == {"status": "ready"}
        # Sessions of version 0 are too old on all.
        assert say(made["g2"]["openai_base_url"], made["g2"]["key"], "x").status_code == 403
        # A second start is refused; one after the end goes on.
        command = ["gateway", "--upstream", server.url, "--auth", "none", "--port", "0"]
        assert main([*command, "--store", str(gateway.folder), "--shards", str(NUM)]) == 2
        assert f"at {gateway.url} uses the store" in " ".join(capfd.readouterr().err.split())
        pids = gateway.pids()
        assert gateway.close() == 130
        wait_until(lambda: is_over(pids), "the shards' end")
        with fleet(gateway.folder, server.url, *options) as again:
            assert {**again.status(), **adapter, "num_begun": 12} == again.status()
            assert again.make("g13")["key"].startswith("sk-katgym-")
            assert len(set(again.pids())) == NUM
            pids = again.pids()
            again.process.kill()
            again.process.wait()
            wait_until(lambda: is_over(pids), "the shards' end")


@pytest.mark.slow
def test_random_kills_of_shards_lose_no_token(tmp_path: Path):
    num_turns, num_agents, seen = 12, 9, {}
    was_killed = threading.Event()

    def play(session: dict[str, str], is_by_front: bool) -> None:
        url = f"{gateway.url}/s/{session['id']}/v1" if is_by_front else session["openai_base_url"]
        for turn in range(num_turns):
            text = f"{session['id']} turn {turn}"
            if turn == num_turns - 1:
                was_killed.wait()
            while True:  # as a client with retries does
                with contextlib.suppress(httpx.HTTPError):
                    answer = say(url, session["key"], text, **{"Idempotency-Key": text})
                    if answer.status_code == 200:
                        break
                    assert answer.status_code == 503, answer.text
                time.sleep(0.05)
            seen.setdefault(session["id"], []).append(answer.json()["id"])

    draws = random.Random(5)
    with ScriptedServer() as server, fleet(tmp_path / "s", server.url) as gateway:
        server.slow_s = 0.05

        async def begin() -> list[dict[str, str]]:
            async with GatewayClient(gateway.url, OWNER) as client:
                return [await make(client, f"agent-{n}") for n in range(num_agents)]

        async def make(client: GatewayClient, name: str) -> dict[str, str]:
            found = await client.create_session(name)
            return {"id": name, "key": found.key, "openai_base_url": found.openai_base_url}

        sessions = asyncio.run(begin())
        agents = [
            threading.Thread(target=play, args=(session, number % 3 == 0))
            for number, session in enumerate(sessions)
        ]
        for agent in agents:
            agent.start()
        num_kills = 0
        while any(agent.is_alive() for agent in agents) and num_kills < 8:
            gateway.kill(draws.randrange(NUM))
            num_kills += 1
            was_killed.set()
            time.sleep(draws.uniform(0, 0.5))
        for agent in agents:
            agent.join()
        gateway.wait_until_up()
        assert sum(s["num_restarts"] for s in gateway.status()["shards"]) == num_kills >= 1
        assert gateway.status()["num_begun"] == num_agents
    for name, calls in seen.items():
        with RolloutStore.open(store_folders(gateway.folder)[shard_of(name, NUM)]) as store:
            recorded = [turn.call_id for turn in store.turns(name)]
        # All that was seen is there, once, in its order; and nothing else.
        assert [call.removeprefix("chatcmpl-") for call in calls] == recorded
        assert len(calls) == num_turns

"""`[[policy.servers]] gpus`: servers that Ray finds nodes for, killed with their process and node.

Nodes are several on this machine, each with an address of its own and GPUs that are none; servers
are those of `hf_server.py`. Not here: a whole run (`test_rl_cluster.py`), what is wrong in a file
(`test_rl_config.py`), servers of one machine (`test_server_pool.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hf_server import HfServer
from hf_server_process import python_for
from waiting import wait_until_async

from katgym.cluster.cluster_config import ClusterConfig
from katgym.errors import InfrastructureError, UsageError
from katgym.policies.base import Sampling
from katgym.vllm_server import VllmServerConfig
from katgym_trainer.config.rl_config import EnvConfig, PolicyConfig, RlConfig
from katgym_trainer.config.run_config import ModelConfig
from katgym_trainer.config.server_config import ServerConfig
from katgym_trainer.rl.servers.server_pool import ServerPool
from katgym_trainer.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

MEMORY = 80_000_000


class Nodes:
    """A cluster: a head without GPUs, and nodes with one each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        self.ray = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: dict[str, Any] = {}

    def add(self) -> str:
        """Add a node, and return its address."""
        address = f"127.0.0.{len(self.nodes) + 2}"
        options = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": MEMORY}
        self.nodes[address] = self.ray.add_node(node_ip_address=address, **options)
        return address

    async def kill(self, address: str) -> None:
        await asyncio.to_thread(self.ray.remove_node, self.nodes[address], allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found = Nodes()
        from katgym.cluster.ray_cluster import connected

        with connected(found.ray.address):  # once: what joins later has joined already
            yield found
        found.ray.shutdown()


@contextlib.asynccontextmanager
async def pool_on(
    nodes: Nodes, model: Path, folder: Path, *servers: ServerConfig, patience_s: float = 600.0
) -> AsyncIterator[tuple[ServerPool, Trainer]]:
    policy = PolicyConfig(
        uri="vllm", servers=servers, server_python=str(python_for(folder)), max_context_tokens=400
    )
    config = RlConfig(
        model=ModelConfig(path=str(model)),
        envs=(EnvConfig(id="katgym/Echo-v0"),),
        policy=policy,
        cluster=ClusterConfig(address=nodes.ray.address, patience_s=patience_s),
    )
    with contextlib.closing(Trainer(str(model), "grpo")) as trainer:
        pool = ServerPool(trainer, config, folder=folder / "run")
        await pool.start()
        try:
            yield pool, trainer
        finally:
            await pool.aclose()


async def ask(pool: ServerPool, session: str) -> int:
    found = await pool.policy.generate(
        [5, 6], sampling=Sampling(temperature=0.0), max_tokens=4, seed=None, session_id=session
    )
    return len(found.token_ids)


def server_pids(url: str) -> list[int]:
    """Return the processes of a server."""
    found, port = [], str(urlsplit(url).port)
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--port" in words and words[words.index("--port") + 1] == port:
                found.append(int(pid))
    return found


async def until(is_so: Callable[[], bool]) -> None:
    await wait_until_async(is_so, "what servers and nodes do", limit_s=900)


def check_journal(path: Path) -> None:
    """Every server that sampled had the weights and was probed before, under that version."""
    probed: dict[str, set[str]] = {}
    reloaded: set[str] = set()
    for line in path.read_text().splitlines():
        url, what, version = line.split()
        if what == "reload":
            reloaded.add(url)
        elif what == "probe":
            assert url in reloaded and version.isdecimal()
            probed.setdefault(url, set()).add(version)
        else:
            assert probed.get(url), line


def test_servers_that_die_with_process_or_node_come_back_elsewhere_with_the_newest_weights(
    nodes: Nodes, model: Path, tmp_path: Path
) -> None:
    addresses = {nodes.add(), nodes.add()}

    async def go(there: HfServer) -> None:
        placed = ServerConfig(gpus=1, count=2)
        given = ServerConfig(url=f"{there.url}#tiny")
        async with pool_on(nodes, model, tmp_path, placed, given) as (pool, trainer):

            async def step() -> dict[str, float]:
                async with pool.training():
                    trainer.step_rows([])
                return await pool.push(trainer.num_steps)

            # 1. Each on its node's address, for who knows the token.
            first = pool.states()
            urls = [state.url for state in first[:2]]
            assert {urlsplit(url).hostname for url in urls} == addresses
            for url in urls:
                for route in ("/pause", "/sleep", "/collective_rpc", "/update_weight_version"):
                    assert httpx.post(f"{url}{route}", json={}, timeout=300).status_code == 401
            assert first[0].token not in str(first) and first[2].token == ""
            assert [await ask(pool, name) for name in "abc"] == [4, 4, 4]
            assert (await step())["sync/difference"] < 1e-4

            # 2. A process is killed.
            for pid in server_pids(urls[0]):
                with contextlib.suppress(ProcessLookupError):  # it ends with the one before it
                    os.kill(pid, signal.SIGKILL)
            assert await ask(pool, "a") == 4  # lost, and asked of the others
            await until(lambda: pool.states()[0].num_restarts == 1 and pool.states()[0].is_open)
            assert pool.states()[0].version == 1
            assert pool.states()[0].end.startswith("vLLM was killed (SIGKILL)")

            # 3. A node is killed; there is room on another one later, and new weights by then.
            victim = str(urlsplit(urls[1]).hostname)
            await nodes.kill(victim)
            await until(lambda: not pool.states()[1].is_up)
            assert (await step())["sync/num_restarts"] == 2
            fresh = nodes.add()
            await until(lambda: pool.states()[1].is_open)
            state = pool.states()[1]
            assert (urlsplit(state.url).hostname, state.version) == (fresh, 2)
            assert state.place.startswith(fresh)
            assert state.end.startswith("vLLM is lost with its place")
            metrics = await step()
            assert (metrics["sync/num_restarts"], metrics["sync/difference"] < 1e-4) == (2, True)
            assert {state.version for state in pool.states()} == {3}
            assert [await ask(pool, name) for name in "defghi"] == [4] * 6
            last = [state.url for state in pool.states()[:2]]
        await until(lambda: not any(server_pids(url) for url in (*urls, *last)))

    with HfServer(model) as there:
        asyncio.run(go(there))
    check_journal(tmp_path / "journal")


def test_what_no_node_has_is_told_and_then_ends_the_run(
    nodes: Nodes, model: Path, tmp_path: Path
) -> None:
    async def go() -> None:
        async with pool_on(nodes, model, tmp_path, ServerConfig(gpus=7), patience_s=1.0):
            pass

    told = r"server 0 waits for a node with 7 GPUs to spare; the cluster has \d, at most [01] on a"
    with pytest.raises(UsageError, match=told):
        asyncio.run(go())


def test_why_a_server_does_not_start_is_told_with_its_node(nodes: Nodes, tmp_path: Path) -> None:
    from katgym.cluster.server_actors import Placement, RayServer

    nodes.add()
    missing, copied = tmp_path / "weights/.seen-1", tmp_path / ".seen-2"
    copied.write_text(".seen-1")  # as in a copy of an earlier run's folder
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho RuntimeError: out of luck\nexit 3\n")
    python.chmod(0o755)

    async def start(model: str, file: Path | None) -> None:
        placement = Placement(name="it", gpus=1, shared_file=file, patience_s=600.0)
        config = VllmServerConfig(model=model, python=str(python))
        async with RayServer(config, token="s3cret", placement=placement):
            pass

    for model, file, error, told in (
        ("tiny", missing, UsageError, f"this node does not see '{missing.parent}', through which"),
        ("tiny", copied, UsageError, f"this node does not see '{copied.parent}', through which"),
        ("/not/there", None, UsageError, "there is no folder '/not/there'"),
        ("tiny", None, InfrastructureError, "(?s:.*)exit code 3(?s:.*)out of luck"),
    ):
        with pytest.raises(error, match=rf"it on 127.0.0.\d \(node .*\): {told}"):
            asyncio.run(start(model, file))

"""What containers are asked for, whose they are, and what happens where no engine is."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
from dataclasses import fields, replace

import pytest

from katgym.errors import UsageError
from katgym.sandbox import SandboxLimits, SandboxSpec, SandboxUnavailableError
from katgym.sandbox.docker_engine import labels, settings
from katgym.sandbox.docker_engine.backend import DockerBackend
from katgym.sandbox.docker_engine.enforced import check_limits, describe
from katgym.sandbox.docker_engine.settings import ContainerPlan, EngineFacts, container_config
from katgym.sandbox.limits import MEBIBYTE

FACTS = EngineFacts(
    version="20.10",
    num_cpus=2,
    has_memory_limit=True,
    has_swap_limit=True,
    has_pids_limit=True,
    has_cpu_limit=True,
    has_seccomp=True,
    is_rootless=False,
)


def config(facts: EngineFacts = FACTS, folders: tuple[str, ...] = (), **limits):
    plan = ContainerPlan(
        spec=SandboxSpec(image="sha256:0", folders=folders, limits=SandboxLimits(**limits)),
        image_id="sha256:0",
        labels={"a": "b"},
        facts=facts,
        num_base_bytes=8192,
        num_base_files=3,
        cpus=8.0,
        runtime=None,
    )
    return container_config(plan)


def test_container_is_isolated_and_limited():
    found = config()
    host = found["HostConfig"]
    assert found["User"] == "1000:1000"
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["ReadonlyRootfs"] is True
    assert host["AutoRemove"] is True
    assert "Binds" not in host
    host = config(memory_bytes=400 * MEBIBYTE, max_processes=10, disk_bytes=MEBIBYTE, max_files=7)[
        "HostConfig"
    ]
    assert host["Memory"] == host["MemorySwap"] == 400 * MEBIBYTE + 8192
    assert host["PidsLimit"] == 14
    assert host["NanoCpus"] == 2_000_000_000  # as many as there are
    assert f"size={MEBIBYTE + 8192}" in host["Tmpfs"]["/workspace"].split(",")
    assert "nr_inodes=11" in host["Tmpfs"]["/workspace"].split(",")
    assert f"size={MEBIBYTE}" in host["Tmpfs"]["/tmp"].split(",")


def test_further_folders_are_memory_like_the_home_and_leave_less_to_the_workspace():
    own, more = (config(folders=each)["HostConfig"]["Tmpfs"] for each in ((), ("/a", "/b/c")))
    assert more["/a"] == more["/b/c"] == own["/home/agent"] == more["/home/agent"]
    sizes = [int(each["/tmp"].split("size=")[1].split(",")[0]) for each in (own, more)]
    assert sizes[0] - sizes[1] == 64 * MEBIBYTE  # half of two homes


def test_full_disks_leave_memory_for_the_supervisor():
    for memory in (8, 96, 2048):
        limits = SandboxLimits(memory_bytes=memory * MEBIBYTE, disk_bytes=1 << 40)
        size = settings.disk_bytes(limits)
        assert size is not None
        reserve = min(64, memory // 4) * MEBIBYTE
        others = reserve + settings.SHM_BYTES + settings.home_bytes(limits)
        assert 2 * size <= max(2 * 4096, memory * MEBIBYTE - others), memory


def test_limit_that_the_engine_cannot_enforce_is_refused():
    lacking = {field.name: False for field in fields(EngineFacts) if field.name.startswith("has_")}
    assert len(lacking) == 5
    facts = replace(FACTS, **lacking)
    others = {"memory_bytes": None, "max_processes": None}
    check_limits(facts, SandboxLimits(**others))
    told = describe(facts, "", 2.0)
    assert not told.is_safe
    for name in others:
        with pytest.raises(UsageError, match=rf"cannot limit {name}.*pass {name}=None"):
            check_limits(facts, SandboxLimits(**{**others, name: 1 << 30}))
        assert name not in told.limits


def test_containers_are_abandoned_with_their_process_and_those_of_other_machines_by_time_only():
    mine = labels.make_labels("x", 100.0, {"owner": "me", labels.MARK: "forged"})
    assert (mine["owner"], mine[labels.MARK]) == ("me", "x")
    assert not labels.is_abandoned(mine)
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    assert labels.is_abandoned({**mine, "katgym.sandbox.pid": str(dead.pid)})
    # The pid was given to another process since.
    assert labels.is_abandoned({**mine, "katgym.sandbox.pid_started": "1"})
    there = {**mine, "katgym.sandbox.boot": "another"}
    there |= {"katgym.sandbox.pid": "1", "katgym.sandbox.pid_started": "7"}
    assert not labels.is_abandoned(there)
    late = {**there, "katgym.sandbox.deadline": str(time.time() - labels.GRACE_S - 1)}
    assert labels.is_abandoned(late)
    assert not labels.is_abandoned({labels.MARK: "without the rest"})


def test_missing_engine_is_said_with_what_to_do(tmp_path):
    backend = DockerBackend(f"unix://{tmp_path}/no.sock")
    spec = SandboxSpec(image="sha256:0")

    async def main():
        with pytest.raises(
            SandboxUnavailableError, match=r"no Docker Engine answers at unix://"
        ) as e:
            await backend.create(spec)
        told = await backend.enforcement()
        await backend.aclose()
        return e.value, told

    error, told = asyncio.run(main())
    assert "dockerd" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert not told.is_safe
    assert "no Docker Engine" in told.probes["engine"]


def test_what_containers_cannot_honour_is_refused(subtests: pytest.Subtests):
    cases = (
        ({}, "needs an image"),
        ({"image": "x", "python": "/usr/bin/python3"}, "image's own interpreter"),
        ({"image": "x", "preload": ("json",)}, "not supported"),
        ({"image": "x", "workdir": "/tmp/work"}, "may not be /tmp or below it"),
        ({"image": "x", "folders": ("/logs", "/proc/x")}, "may not be /proc or below it"),
    )
    for options, text in cases:
        with subtests.test(options=options), pytest.raises(UsageError, match=text):
            asyncio.run(DockerBackend().create(SandboxSpec(**options)))
    for option in ("max_concurrency", "max_starting"):
        with pytest.raises(UsageError, match=f"{option} is at least 1, got 0"):
            DockerBackend(**{option: 0})


@pytest.mark.slow
def test_import_loads_no_sdk():
    code = (
        "import sys, katgym.sandbox.docker_engine.backend;"
        "assert not {'docker', 'requests'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_missing_sdk_is_said_with_the_command():
    code = (
        "import asyncio, sys; sys.modules['docker'] = None\n"
        "from katgym.errors import MissingDependencyError\n"
        "from katgym.sandbox.docker_engine.backend import DockerBackend\n"
        "try: asyncio.run(DockerBackend().engine())\n"
        "except MissingDependencyError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'katgym[swe]'" in done.stdout

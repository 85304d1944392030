"""Runs a task's tests in a sandbox and reads the reward that they write.

Not here: which sandbox, and what of the agent's it has (`env.py`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from katgym.sandbox import Sandbox, SandboxLimits
from katgym_plugin_harbor.task_config import resolve
from katgym_plugin_harbor.task_folder import TaskFolder

FOLDERS = ("/logs", "/solution", "/tests")
"""Where Harbor's parts are, beside the workdir."""
MAX_ARTIFACT_BYTES = 64 << 20
_MAX_REWARD_BYTES = 64 << 10
_LOG = "/logs/verifier/test-stdout.txt"
_MAKE_FOLDERS = "mkdir -p /logs/agent /logs/verifier /logs/artifacts"
_PREPARE = (
    "rm -rf /tests/* /tests/.[!.]* /logs/verifier && mkdir /logs/verifier && tar -xf - -C /tests"
)
_READ = f"""for name in reward.json reward.txt; do
if [ -f /logs/verifier/$name ]; then
echo $name; head -c {_MAX_REWARD_BYTES} /logs/verifier/$name; exit; fi; done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierReward:
    """What a verifier said.

    Example:
        VerifierReward(reward=1.0, rewards={"reward": 1.0}, log="2 passed in 0.1 s\\n")
    """

    reward: float = 0.0
    rewards: dict[str, float] = field(default_factory=dict)
    """All that reward.json names; reward.txt names "reward"."""
    problem: str = ""
    """Why there is no reward, which counts as 0: the agent's files may be why."""
    log: str = ""
    """The end of what the tests printed."""


async def make_folders(sandbox: Sandbox) -> None:
    """Make the folders that Harbor's programs expect below /logs."""
    await sandbox.exec(_MAKE_FOLDERS)


async def verify(sandbox: Sandbox, folder: TaskFolder) -> VerifierReward:
    """Put the tests into a sandbox, run them, and return what they say; whatever is there of tests
    and rewards goes first."""
    await make_folders(sandbox)
    prepared = await sandbox.exec(_PREPARE, stdin=folder.to_tar("tests"))
    if not prepared.ok:
        return VerifierReward(problem=f"the tests cannot be put there: {prepared.text()[-300:]}")
    verifier = folder.config.verifier
    run = await sandbox.exec(
        f"/tests/test.sh > {_LOG} 2>&1",
        env=resolve(verifier.env),
        limits=SandboxLimits(wall_s=verifier.timeout_sec),
    )
    log = (await sandbox.exec(["tail", "-c", "4000", _LOG])).stdout.decode("utf-8", "replace")
    if run.is_timed_out:
        return VerifierReward(
            problem=f"the tests took more than {verifier.timeout_sec:g} s", log=log
        )
    told = (await sandbox.exec(_READ)).stdout.decode("utf-8", "replace")
    name, _, text = told.partition("\n")
    try:
        return read_reward(name, text, log)
    except (ValueError, RecursionError) as e:
        return VerifierReward(problem=f"{name or 'no reward file'}: {e}", log=log)


def read_reward(name: str, text: str, log: str) -> VerifierReward:
    """Return the verdict of a reward file; `ValueError` says why there is none."""
    if not name:
        raise ValueError("the tests wrote neither reward.json nor reward.txt")
    told = json.loads(text) if name == "reward.json" else float(text)
    rewards = told if isinstance(told, dict) else {"reward": told}
    for key, value in rewards.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{key!r} is {value!r}, not a finite number")
    chosen = rewards.get("reward") if len(rewards) != 1 else next(iter(rewards.values()))
    if chosen is None:
        raise ValueError(f"it names several rewards, {sorted(rewards)}, and none is 'reward'")
    return VerifierReward(reward=float(chosen), rewards=rewards, log=log)


async def copy_artifacts(source: Sandbox, target: Sandbox, paths: list[str]) -> str:
    """Copy files and folders to the same paths of another sandbox; return why not, "" if done."""
    await make_folders(target)
    absolute = [
        str(path) if path.startswith("/") else f"{source.spec.workdir}/{path}" for path in paths
    ]
    there = [path for path in absolute if (await source.exec(["test", "-e", path])).ok]
    packed = await source.exec(
        ["tar", "-cf", "-", "-C", "/", "--", *[p.lstrip("/") for p in there]]
    )
    if not packed.ok or packed.stdout_omitted:
        return f"the artifacts cannot be collected: {packed.stderr[-300:]!r}"
    put = await target.exec(["tar", "-xf", "-", "-C", "/"], stdin=packed.stdout)
    return "" if put.ok else f"the artifacts cannot be put there: {put.text()[-300:]}"

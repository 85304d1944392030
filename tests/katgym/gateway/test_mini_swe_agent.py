"""mini-swe-agent, unchanged, repairs a repository through a gateway; the model's part is scripted.

The agent (with litellm) runs in an environment of its own, its commands in a real sandbox, and the
real grader decides. Not here: its environment without a gateway (`tests/envs/swe/agents`).
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
from pathlib import Path

import numpy
import pytest

pytest.importorskip("katgym_envs.swe.grading.grader", reason="needs the extra 'swe'")

from katgym.gateway import GatewayClient
from katgym.rollout_store.rollouts import rollouts
from katgym.sandbox import backend
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.sources.open_source import open_source

from .scripted_server import END, call_text, logprob
from .served_gateway import OWNER

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parent / "agents" / "play_mini_swe_agent.py"
TASK = "parcelkit-1.0.0-9f6ed93f"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def bash(command):
    return ("bash", json.dumps({"command": command}))


def actions(gold_patch):
    """Return what a model that knows the answer would do: look, look at two things, fix, end."""
    changed = gold_patch.splitlines()[0].split(" b/")[-1]
    return [
        [bash("ls -a")],
        [bash(f"head -5 {shlex.quote(changed)}"), bash("python --version; id -u")],
        "I forgot to call the tool.",
        [bash(f"git apply - <<'PATCH'\n{gold_patch}\nPATCH")],
        [bash(SUBMIT)],
    ]


def play(session):
    """Run the agent in a process of its own; return what it told."""
    # litellm 1.106 imports mcp without asking for it.
    python = ensure_venv(("mini-swe-agent==2.4.6", "mcp==2.3.0"))
    paths = ":".join([str(ROOT), str(ROOT / "envs"), str(Path(numpy.__file__).parents[1])])
    environ = session.environ({k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    environ |= {"MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"}
    environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_SILENT_STARTUP": "1"}
    done = subprocess.run(
        [python, SCRIPT, paths, "toy", TASK],
        env=environ, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


async def graded(source, patch):
    task = await asyncio.to_thread(GradedTask.load, source, TASK)
    sandboxes = backend("local")
    try:
        return await grade(task, patch, backend=sandboxes)
    finally:
        await sandboxes.aclose()


async def episode(url, source):
    """Play and grade one episode as its owner does."""
    metadata = {"env_id": "katgym/SWE-v0", "task_id": TASK}
    async with (
        GatewayClient(url, OWNER) as owner,
        owner.session("swe", group_id=TASK, metadata=metadata) as session,
    ):
        told = await asyncio.to_thread(play, session)
        report = await graded(source, told["patch"])
        await session.reward(float(report.is_resolved), {"resolved": float(report.is_resolved)})
    return told, report


@pytest.mark.slow
def test_the_agent_repairs_a_repository_and_every_token_is_kept(guarded, server):
    source = open_source("toy")
    server.max_model_len = 1 << 20
    server.script = actions(source.load_hidden(TASK).gold_patch)
    script = list(server.script)
    told, report = asyncio.run(episode(guarded.url, source))
    assert told["ended"]["exit_status"] == "Submitted"
    assert report.is_resolved, report.reason
    record = guarded.store.session("swe")
    assert (record.status, record.reward.value) == ("finished", 1.0)
    rollout = rollouts(guarded.store, "swe")
    assert (rollout.reward.value, rollout.reward.is_valid) == (1.0, True)
    assert (rollout.env_id, rollout.task_id) == ("katgym/SWE-v0", TASK)
    assert rollout.num_turns == told["num_calls"] == len(script)
    paths = rollout.trajectories()
    # The agent leaves an answer without a call out of its next prompt: another path from there.
    assert [path.turns for path in paths] == [(0, 1, 2), (3, 4)]
    said = [
        step if isinstance(step, str) else "".join(call_text(*c) for c in step) for step in script
    ]
    for path in paths:
        places = list(enumerate(zip(path.token_ids, path.loss_mask, strict=True)))
        sampled = [token for _, (token, is_sampled) in places if is_sampled]
        assert sampled == [i for turn in path.turns for i in (*said[turn].encode(), END)]
        assert path.policy_logprobs == [
            logprob(i, token) if is_sampled else 0.0 for i, (token, is_sampled) in places
        ]
    results = rollout.turns[1].tool_results
    assert len(results) == 2
    assert "Parcels" in results[0].content and "1000" in results[1].content
    assert guarded.store.failed_calls("swe") == []

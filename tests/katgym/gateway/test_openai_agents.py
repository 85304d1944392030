"""openai-agents, unchanged, through a gateway: tools, a sub-agent and a hand-off as branches.

The agents run in an environment of their own; the model's part is scripted. Not here: agents that
work in a sandbox (`test_mini_swe_agent.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from katgym.policies.base import BranchReason
from katgym.rollout_store.rollouts import rollouts
from katgym.sandbox.venvs import ensure_venv

from .kept_answers import kept
from .scripted_server import END, call_text

SCRIPT = Path(__file__).parent / "agents" / "play_openai_agents.py"
ANSWERS = [
    [("look", '{"x": 1}'), ("look", '{"x": 2}')],
    [("ask_expert", '{"input": "What is place 2?"}')],
    [("look", '{"x": 3}')],  # the expert
    "It is a door.",  # the expert
    [("transfer_to_writer", "{}")],
    "There is a door.",  # the writer
]


def play(session, api):
    """Run the agents in a process of their own; return what they told."""
    python = ensure_venv(("openai-agents==0.24.0",))
    environ = session.environ({k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    done = subprocess.run(
        [python, SCRIPT, api], env=environ, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("api", ["responses", "chat_completions"])
def test_sub_agents_and_hand_offs_are_branches(agent, guarded, server, api):
    server.script = list(ANSWERS)
    told = play(agent, api)
    assert (told["said"], told["last_agent"]) == ("There is a door.", "writer")
    assert sorted(told["looked"]) == [1, 2, 3]
    nodes = guarded.turns()
    assert len(nodes) == len(ANSWERS)
    assert [n.tokens.branch for n in nodes] == [
        None, None, BranchReason.SUB_AGENT, None, None, BranchReason.SUB_AGENT,
    ]  # fmt: skip
    assert [nodes[i].tokens.parent for i in (1, 3, 4)] == [0, 2, 1]
    said = [a if isinstance(a, str) else "".join(call_text(*c) for c in a) for a in ANSWERS]
    assert [list(n.tokens.completion_ids) for n in nodes] == [[*s.encode(), END] for s in said]
    asked = [c[1:] for i in range(len(ANSWERS)) for c in kept(guarded, i).calls]
    assert asked == [c for a in ANSWERS if not isinstance(a, str) for c in a]
    rollout = rollouts(guarded.store, guarded.session)
    assert [r.content for r in rollout.turns[0].tool_results] == ["place 1", "place 2"]
    assert [r.content for r in rollout.turns[1].tool_results] == ["It is a door."]
    assert len(rollout.trajectories()) == 3
    num_sampled = sum(len(n.tokens.completion_ids) for n in nodes)
    assert num_sampled == sum(sum(t.loss_mask) for t in rollout.trajectories())
    assert {n.route.partition("/")[2] for n in nodes} == {api.partition("_")[0]}
    assert guarded.failed_calls() == []

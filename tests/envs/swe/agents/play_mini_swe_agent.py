"""Plays mini-swe-agent, unchanged, in a sandbox; run by the test in an environment that has it.

Reads nothing, writes one JSON object: how it ended, what the workspace's changes are.
"""

from __future__ import annotations

import json
import sys
from typing import Any

sys.path += sys.argv[1].split(":")  # katgym and what it needs, behind the agent's own packages

from minisweagent.agents.default import DefaultAgent
from minisweagent.models.test_models import (
    DeterministicModel,
    make_output,
)

from katgym.sandbox import SandboxSpec, layer_store
from katgym.sandbox.blocking import BlockingSandbox
from katgym_envs.swe.agents.mini_swe_agent import SandboxEnvironment

COMMANDS = [
    "cat shout.py && python3 -c 'import shout; print(shout.shout(\"a\"))'",
    "sed -i 's/lower/upper/' shout.py",
    "cd / && sleep 3600",
    "pwd; cat /proc/1/environ; id -u",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat shout.py",
]


class Impatient(SandboxEnvironment):
    """Gives what sleeps a second, and what has to end all it needs."""

    def execute(self, action: Any, cwd: str = "", *, timeout: float | None = None) -> Any:
        """Run a command."""
        limit_s = 1.0 if "sleep" in action["command"] else timeout
        return super().execute(action, cwd, timeout=limit_s)


def main() -> None:
    """Play."""
    layer = layer_store().add_files({"shout.py": b"def shout(text):\n    return text.lower()\n"})
    env = {"PYTHONDONTWRITEBYTECODE": "1"}
    with BlockingSandbox("local", SandboxSpec(layers=(layer,), env=env)) as sandbox:
        outputs = [make_output("", [{"command": command}]) for command in COMMANDS]
        agent = DefaultAgent(
            DeterministicModel(outputs=outputs),
            Impatient(sandbox, timeout_s=300.0),
            system_template="You repair code. You are in {{cwd}}.",
            instance_template="{{task}}",
            cost_limit=0,
        )
        ended = agent.run("shout() whispers")
        changes = {c.path: (c.content or b"").decode() for c in sandbox.diff()}
        seen = [m["content"] for m in agent.messages if m["role"] == "user"]
    print(
        json.dumps({"ended": ended, "changes": changes, "seen": seen, "prompt": agent.messages[0]})
    )


if __name__ == "__main__":
    main()

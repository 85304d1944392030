"""Plays mini-swe-agent, unchanged, on a task of katgym; run in an environment that has the agent.

    python play_mini_swe_agent.py PATHS TASK_SET TASK_ID

It finds its model by OPENAI_BASE_URL and OPENAI_API_KEY alone. The last line of its output is a
JSON object: how it ended, and the workspace's changes as a patch. Not here: grading.
"""

from __future__ import annotations

import json
import sys

sys.path += sys.argv[1].split(":")  # katgym and what it needs, behind the agent's own packages

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_path
from minisweagent.models.litellm_model import LitellmModel

from katgym.sandbox import SandboxSpec
from katgym.sandbox.blocking import BlockingSandbox
from katgym_envs.swe.agents.mini_swe_agent import SandboxEnvironment
from katgym_envs.swe.patching import as_tree, make_workspace_diff
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.swe_task import SweTask


def main() -> None:
    """Play."""
    source, task_id = open_source(sys.argv[2]), sys.argv[3]
    task, base = SweTask.from_row(source.row(task_id)), source.workspace(task_id)
    config = yaml.safe_load(get_config_path("mini.yaml").read_text())
    model = config["model"] | {"model_name": "openai/tiny", "cost_tracking": "ignore_errors"}
    own = ("system_template", "instance_template")
    path = ":".join(f"{task.env.workdir}/{p}".rstrip("/.") for p in task.env.python_path)
    spec = SandboxSpec(
        layers=() if base.layer is None else (base.layer,),
        workdir=task.env.workdir,
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **task.env.env},
        python=base.python,
    )
    with BlockingSandbox("local", spec) as sandbox:
        agent = DefaultAgent(
            LitellmModel(**model),
            SandboxEnvironment(sandbox, timeout_s=300.0),
            **{name: config["agent"][name] for name in own},
            cost_limit=0,
        )
        ended = agent.run(task.problem_statement)
        patch = make_workspace_diff(as_tree(source.base_files(task_id)), sandbox.diff())
    told = {"ended": ended, "patch": patch, "num_calls": agent.n_calls}
    told["messages"] = [{k: m.get(k) for k in ("role", "content")} for m in agent.messages]
    print(json.dumps(told))


if __name__ == "__main__":
    main()

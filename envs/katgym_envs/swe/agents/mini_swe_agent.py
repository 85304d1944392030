"""An environment for mini-swe-agent (PyPI) whose commands run in a katgym sandbox.

    from minisweagent.agents.default import DefaultAgent
    environment = SandboxEnvironment(sandbox)        # a katgym.sandbox.blocking.BlockingSandbox
    DefaultAgent(model, environment, **config).run(task.problem_statement)
    patch = sandbox.diff()                           # never what the agent printed

The agent itself is not changed. Needs `pip install mini-swe-agent`. Not here: tasks and grading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katgym.sandbox import SandboxLimits
from katgym.sandbox.blocking import BlockingSandbox

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What the agent's prompt tells the model to print when it is done."""


class SandboxEnvironment:
    """Implements the agent's `Environment` protocol over one sandbox, which the caller owns.

    The agent ends on a line its commands print; nothing that is graded depends on it.
    """

    def __init__(
        self, sandbox: BlockingSandbox, *, timeout_s: float = 30.0, env: Mapping[str, str] = {}
    ) -> None:
        self.sandbox = sandbox
        self.timeout_s = timeout_s
        self.env = dict(env)

    def execute(
        self, action: Mapping[str, Any], cwd: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Run `action["command"]` in a new shell; ends the agent when it says it is done."""
        result = self.sandbox.exec(
            action.get("command", "") + "\n",
            cwd=cwd or None,
            env=self.env,
            limits=SandboxLimits(wall_s=timeout or self.timeout_s),
        )
        why = "the command was stopped: out of memory" if result.is_out_of_memory else ""
        if result.is_timed_out:
            why = f"the command was stopped after {result.wall_s:.1f} s"
        output: dict[str, Any] = {
            "output": result.text(),
            "returncode": -1 if result.exit_code is None else result.exit_code,
            "exception_info": why,
        }
        from minisweagent.exceptions import Submitted  # only there when the agent is

        first, _, rest = output["output"].lstrip().partition("\n")
        if first.strip() == _SUBMIT and output["returncode"] == 0:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the agent's prompt templates may name."""
        return {
            "cwd": self.sandbox.sandbox.spec.workdir,
            "env": self.env,
            "timeout": self.timeout_s,
            "system": "Linux",
            "release": "",
            "version": "",
            "machine": "",
            **kwargs,
        }

    def serialize(self) -> dict[str, Any]:
        """Return what the agent saves about its environment."""
        config = {"cwd": self.sandbox.sandbox.spec.workdir, "timeout": self.timeout_s}
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return {"info": {"config": {"environment": config, "environment_type": name}}}

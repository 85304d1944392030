"""katgym: Gymnasium for LLM agents.

    env = katgym.make("katgym/Arithmetic-v1")
    rollout = await katgym.run_rollout(env, katgym.policy("smollm2"), seed=0)
    rollout.reward.value, rollout.messages

Importing it registers every installed plugin's envs, here and with Gymnasium; an env's own module
is imported by `make`.
"""

from katgym import testing
from katgym.certificate.certify import check_env
from katgym.environment.env import Env
from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import Action, Message, assistant, system, user
from katgym.environment.reward import (
    Component,
    Reward,
    Rubric,
    Scorer,
    ScoringFailure,
    Success,
    Trust,
    scorer,
)
from katgym.environment.scheduler import SchedulerConfig, ToolErrorKind, ToolResult
from katgym.environment.task import ProceduralTaskSet, Task, TaskSet
from katgym.environment.tool import Tool, tool, tools_by_name
from katgym.errors import (
    ContextLengthError,
    DuplicateIdError,
    EpisodeStateError,
    InfrastructureError,
    KatgymError,
    MissingDependencyError,
    PolicyError,
    ToolError,
    UnknownNameError,
    UsageError,
)
from katgym.hookspecs import hookimpl
from katgym.play.agent_loop import run_rollout
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest, run_group
from katgym.play.limits import Limits
from katgym.play.match import run_match
from katgym.play.rollout import Rollout, RolloutGroup, Trajectory, Turn
from katgym.plugins.registry import list_envs, make, register, spec, sync_gymnasium
from katgym.policies.base import Completion, Policy, Sampling, TokenRecord
from katgym.policies.uri import policy
from katgym.policies.version_span import VersionSpan
from katgym.version import __version__

__all__ = [
    "Action",
    "Completion",
    "Component",
    "ContextLengthError",
    "DuplicateIdError",
    "EngineConfig",
    "Env",
    "EpisodeStateError",
    "FailureKind",
    "InfrastructureError",
    "KatgymError",
    "Limits",
    "Message",
    "MissingDependencyError",
    "Policy",
    "PolicyError",
    "ProceduralTaskSet",
    "Reward",
    "Rollout",
    "RolloutEngine",
    "RolloutGroup",
    "RolloutRequest",
    "RolloutStatus",
    "Rubric",
    "Sampling",
    "SchedulerConfig",
    "Scorer",
    "ScoringFailure",
    "Success",
    "Task",
    "TaskSet",
    "TokenRecord",
    "Tool",
    "ToolError",
    "ToolErrorKind",
    "ToolResult",
    "Trajectory",
    "Trust",
    "Turn",
    "UnknownNameError",
    "UsageError",
    "VersionSpan",
    "__version__",
    "assistant",
    "check_env",
    "hookimpl",
    "list_envs",
    "make",
    "policy",
    "register",
    "run_group",
    "run_match",
    "run_rollout",
    "scorer",
    "spec",
    "system",
    "testing",
    "tool",
    "tools_by_name",
    "user",
]

sync_gymnasium()

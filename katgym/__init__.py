"""katgym: Gymnasium for LLM agents.

    env = katgym.make("katgym/Arithmetic-v0")
    rollout = await katgym.run_rollout(env, katgym.policy("smollm2"), seed=0)
    rollout.reward.value, rollout.messages

Importing it registers every installed plugin's envs, here and with Gymnasium; an env's own module
is imported by `make`.
"""

from katgym import testing
from katgym.agent_loop import run_rollout
from katgym.checks import check_env
from katgym.engine import EngineConfig, RolloutEngine, RolloutRequest, run_group
from katgym.env import Env
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
from katgym.failure import FailureKind, RolloutStatus
from katgym.hookspecs import hookimpl
from katgym.limits import Limits
from katgym.match import run_match
from katgym.messages import Action, Message, assistant, system, user
from katgym.policies.base import Completion, Policy, Sampling, TokenRecord
from katgym.policies.uri import policy
from katgym.registry import list_envs, make, register, spec, sync_gymnasium
from katgym.reward import Component, Reward, Rubric, Scorer, ScoringFailure, scorer
from katgym.rollout import Rollout, RolloutGroup, Trajectory, Turn
from katgym.scheduler import SchedulerConfig, ToolErrorKind, ToolResult
from katgym.task import ProceduralTaskSet, Task, TaskSet
from katgym.tool import Tool, tool
from katgym.version import __version__
from katgym.version_span import VersionSpan

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
    "Task",
    "TaskSet",
    "TokenRecord",
    "Tool",
    "ToolError",
    "ToolErrorKind",
    "ToolResult",
    "Trajectory",
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
    "user",
]

sync_gymnasium()

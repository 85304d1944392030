"""katgym: Gymnasium for LLM agents."""

from katgym.errors import (
    ContextLengthError,
    InfrastructureError,
    KatgymError,
    PolicyError,
    ToolError,
    UsageError,
)
from katgym.failure import FailureKind, RolloutStatus
from katgym.messages import Message, assistant, system, user
from katgym.reward import Component, Reward, Rubric, Scorer, ScoringFailure, scorer
from katgym.task import ProceduralTaskSet, Task, TaskSet
from katgym.tool import Tool, tool
from katgym.env import Env  # noqa: I001 - env needs the names above

__version__ = "0.1.0"

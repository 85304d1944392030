"""Errors of a rollout's turns, and which of them are kept out of the loss.

Not here: the rows that masks change (`rollout_rows.py`).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from enum import StrEnum

from katgym.environment.failure import RolloutStatus
from katgym.environment.scheduler import ToolErrorKind
from katgym.play.rollout import Rollout
from katgym_trainer.config.rules import Pair, check_value
from katgym_trainer.rollouts.rollout_checks import answer_of

LOOP_LENGTH = 3


class TurnError(StrEnum):
    """An error of one turn; a turn may have several."""

    FAILED_CALL = "failed_call"
    """A tool call has an error for its result, whatever the error."""
    UNPARSABLE = "unparsable"
    """A call that never ran: unreadable, of an unknown tool, with arguments that break the tool's
    schema, or one more than a turn may hold."""
    LOOP = "loop"
    """The same calls with the same arguments as the turn before, for the third time in a row (see
    `ErrorMasks.loop_length`) or a later one."""
    TRUNCATED = "truncated"
    """The answer was cut at its most tokens."""


_UNPARSABLE = frozenset(
    {
        ToolErrorKind.UNKNOWN_TOOL,
        ToolErrorKind.BAD_JSON,
        ToolErrorKind.BAD_ARGUMENTS,
        ToolErrorKind.MALFORMED,
        ToolErrorKind.OVER_CAP,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorMasks:
    """Which errors keep a turn's sampled tokens from being trained, or from their advantage.

    Example:
        ErrorMasks(loss=frozenset({TurnError.FAILED_CALL, TurnError.UNPARSABLE}))
    """

    loss: frozenset[TurnError] = frozenset()
    """Turns with one of these are context alone: their tokens are not trained."""
    advantage: frozenset[TurnError] = frozenset()
    """Turns with one of these have advantage 0: they stay trained, so that they count in means and
    keep terms that have no advantage (entropy, KL), but are neither reinforced nor discouraged."""
    truncated_rollouts: bool = False
    """Whether rollouts that were cut (`is_truncated`) are not trained on, however well they did
    (DAPO's overlong filtering, arXiv 2503.14476, section 3.4); their rewards are compared with all
    the same."""
    loop_length: int = LOOP_LENGTH
    """Turns in a row with the same calls from which on a turn is a `LOOP`."""

    def __post_init__(self) -> None:
        allowed = ", ".join(TurnError)
        for name in ("loss", "advantage"):
            errors = getattr(self, name)
            if not isinstance(errors, frozenset) or not errors <= set(TurnError):
                raise ValueError(f"{name} is a frozenset of {allowed}; got {errors!r}")
        check_value("loop_length", self.loop_length, Pair)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is masked."""
        return not (self.loss or self.advantage or self.truncated_rollouts)


NO_MASKS = ErrorMasks()


def is_truncated(rollout: Rollout) -> bool:
    """Return whether a budget ended the episode, or its last answer was cut at its most tokens."""
    was_cut = bool(rollout.turns) and rollout.turns[-1].finish_reason == "length"
    return was_cut or rollout.status is RolloutStatus.TRUNCATED


def turn_errors(rollout: Rollout, *, loop_length: int = LOOP_LENGTH) -> list[frozenset[TurnError]]:
    """Return the errors of each turn.

    loop_length: turns in a row with the same calls from which on a turn is a `LOOP`; at least 2.

    Raises `ValueError` if a turn's answer is not among the rollout's messages.
    """
    check_value("loop_length", loop_length, Pair)
    found = []
    before: list[tuple[str, str]] = []
    num_same = 0
    for index, turn in enumerate(rollout.turns):
        # Names and arguments, equal for JSON that differs in spaces or order alone.
        calls = []
        for call in answer_of(rollout, index).get("tool_calls", ()):
            name, text = call["function"]["name"], call["function"]["arguments"]
            with contextlib.suppress(ValueError, RecursionError):
                text = json.dumps(json.loads(text), sort_keys=True)
            calls.append((name, text))
        num_same = num_same + 1 if calls and calls == before else 1
        before = calls
        kinds = {result.error for result in turn.tool_results} - {None}
        errors = {
            TurnError.FAILED_CALL: bool(kinds),
            TurnError.UNPARSABLE: bool(kinds & _UNPARSABLE),
            TurnError.LOOP: num_same >= loop_length,
            TurnError.TRUNCATED: turn.finish_reason == "length",
        }
        found.append(frozenset(error for error, is_there in errors.items() if is_there))
    return found

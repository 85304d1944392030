"""The groups of a run that are read with their turns: all that are asked for, up to a limit.

Above the limit half of the places go to the newest groups, a quarter to the best and a quarter to
the worst by mean reward; held-out groups come behind those that were trained on. Not here:
reading them (`source.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym.run_view.run_view import GroupHead

DEFAULT_LIMIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is asked for; None and False ask for everything."""

    step: int | None = None
    group_id: str | None = None
    env_id: str | None = None
    task_id: str | None = None
    is_invalid: bool = False
    """Only groups with a rollout that has no valid reward."""
    limit: int = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"--limit is a number of groups >= 1, got {self.limit!r}")


def choose(heads: Sequence[GroupHead], selection: Selection) -> list[GroupHead]:
    """Return the groups to show, the newest step first; `UsageError` when none is as asked for.

    heads: in the order in which they were played.
    """
    if heads and selection.group_id not in (None, *(head.group_id for head in heads)):
        known = [head.group_id for head in heads]
        raise UnknownNameError(unknown_name("group", str(selection.group_id), known))
    steps_there = sorted({head.step for head in heads if head.step is not None})
    if heads and selection.step not in (None, *steps_there):
        allowed = (
            f"the run has steps {steps_there[0]} to {steps_there[-1]}"
            if steps_there
            else "the run has none"
        )
        raise UsageError(f"no group is of step {selection.step!r}; {allowed}")
    fitting = [
        head
        for head in heads
        if selection.step in (None, head.step)
        and selection.group_id in (None, head.group_id)
        and selection.env_id in (None, head.env_id)
        and selection.task_id in (None, head.task_id)
        and not (selection.is_invalid and head.num_invalid == 0)
    ]
    if heads and not fitting:
        raise UsageError(
            "no group of this run is as asked for; leave out one of --step, --group, --env, --task"
            " and --invalid"
        )
    return newest_first(_bounded(fitting, selection.limit))


def newest_first(heads: Sequence[GroupHead]) -> list[GroupHead]:
    """Return groups by step, the newest first, and of a step the held-out ones last."""
    return sorted(
        heads, key=lambda head: (1 if head.step is None else -head.step, head.is_held_out)
    )


def _bounded(heads: Sequence[GroupHead], limit: int) -> list[GroupHead]:
    """Return at most `limit` groups, in their order."""
    if len(heads) <= limit:
        return list(heads)
    newest = sorted(  # those that were trained on first, of them those of the last step
        range(len(heads)),
        key=lambda i: (
            not heads[i].is_held_out,
            -1 if (step := heads[i].step) is None else step,
            i,
        ),
        reverse=True,
    )
    trained = [i for i in range(len(heads)) if not heads[i].is_held_out]
    known = [i for i in trained if heads[i].mean_reward is not None]
    by_reward = sorted(known, key=lambda i: heads[i].mean_reward or 0.0)
    chosen = dict.fromkeys(newest[: limit - limit // 2])
    for order in (by_reward, by_reward[::-1]):  # the worst, then the best
        new = [i for i in order if i not in chosen]
        chosen.update(dict.fromkeys(new[: limit // 4]))
    chosen.update(dict.fromkeys([i for i in newest if i not in chosen][: limit - len(chosen)]))
    return [heads[i] for i in sorted(chosen)]

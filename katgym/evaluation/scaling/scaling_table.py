"""Test-time scaling beside the mean attempt and beside the best that a choice can do.

Not here: the figures of the chosen attempts (`statistics/summary.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.evaluation.run import EvalResult
from katgym.evaluation.scaling.scaled_run import ATTEMPTS
from katgym.evaluation.statistics.intervals import Interval
from katgym.evaluation.statistics.number_text import NONE, count_text, estimate_text, number_text
from katgym.evaluation.statistics.summary import EnvSummary, summarize
from katgym.evaluation.store import read_rollouts
from katgym.text_table import TextTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One way to answer each task of an env.

    Example:
        ScalingRow(env_id="katgym/Arithmetic-v1", choice="any of 8 (bound)", success=0.98,
                   interval=None, num_prompt_tokens=1900.0, num_completion_tokens=410.0)
    """

    env_id: str
    choice: str
    success: float | None
    """Share of tasks, or chance."""
    interval: Interval | None
    num_prompt_tokens: float
    """Of one task."""
    num_completion_tokens: float


def scaling_rows(result: EvalResult) -> list[ScalingRow]:
    """Return three rows for each env: one attempt, the chosen one, the best that a choice can do.

    The bound, pass@k, looks at rewards, which no choice does; it does not bound retries.
    """
    attempts = summarize(read_rollouts(result.folder / ATTEMPTS)).envs
    rows = []
    for env_id, chosen in result.summary.envs.items():
        side = attempts[env_id]
        k = max(side.pass_at_k, default=1)
        bound = side.pass_at_k.get(k)
        each, all_k = 1 / side.num_rollouts, k / side.num_rollouts
        rows += [
            _row(side, "one attempt", side.success_rate, side.success_interval, each),
            _row(chosen, "chosen", chosen.success_rate, chosen.success_interval,
                 1 / chosen.num_rollouts),
            _row(side, f"any of {k} (bound)", bound, None, all_k),
        ]  # fmt: skip
    return rows


def _row(
    env: EnvSummary, choice: str, success: float | None, interval: Interval | None, share: float
) -> ScalingRow:
    return ScalingRow(
        env_id=env.env_id,
        choice=choice,
        success=success,
        interval=interval,
        num_prompt_tokens=env.num_prompt_tokens * share,
        num_completion_tokens=env.num_completion_tokens * share,
    )


def scaling_table(rows: list[ScalingRow]) -> TextTable:
    """Return the rows as a table."""
    header = ("env", "answer", "success", "tokens in", "tokens out")
    cells = [
        (
            row.env_id,
            row.choice,
            NONE if row.success is None
            else estimate_text(row.success, row.interval) if row.interval
            else number_text(row.success),
            count_text(round(row.num_prompt_tokens)),
            count_text(round(row.num_completion_tokens)),
        )
        for row in rows
    ]  # fmt: skip
    caption = "tokens: of one task, everything that was played and asked for it"
    return TextTable(header=header, rows=cells, right=header[2:], caption=caption)

"""What is measured of a step, as the age of its weights token by token; and what is shown of it."""

from __future__ import annotations

import io

import pytest
from made_rollouts import record, rollout_of, turn
from rich.console import Console

from katgym import RolloutGroup, TokenRecord, Turn, VersionSpan
from katgym_trainer.cli.rl_progress import RlProgress, sparkline, split_of
from katgym_trainer.cli.stage_progress import StageProgress
from katgym_trainer.config.rl_config import RolloutsConfig
from katgym_trainer.rl.curriculum import GroupDraw
from katgym_trainer.rl.group_stream import PlayedGroup, Taken
from katgym_trainer.rl.rl_metrics import rollout_metrics

DRAW = GroupDraw(number=0, env=0, lesson=0, task_id="t", seed=0)


def tokens(*ends: tuple[int, int]) -> TokenRecord:
    """Return a record of which each (version, end) sampled a run of tokens."""
    starts = [0, *(end for _, end in ends)]
    spans = [
        VersionSpan(version=version, start=start, end=end)
        for (version, end), start in zip(ends, starts, strict=False)
    ]
    return record(None, 0, [1, 2], [3] * starts[-1], version_spans=spans)


def played(*records: TokenRecord | None, begun_version: int = 0) -> PlayedGroup:
    rollouts = [rollout_of(turn(r), episode_id=str(i)) for i, r in enumerate(records)]
    return PlayedGroup(
        draw=DRAW, group=RolloutGroup(rollouts=rollouts), begun_version=begun_version
    )


def staleness(*groups: PlayedGroup, version: int) -> tuple[float, float]:
    found = rollout_metrics(Taken(groups=groups), version, RolloutsConfig(max_staleness=1))
    return found["rollout/staleness"], found["rollout/max_staleness"]


def test_staleness_is_the_mean_age_of_tokens_whatever_their_groups() -> None:
    first = played(tokens((3, 10)), tokens((2, 6), (3, 10)))
    second = played(tokens((1, 1), (2, 3), (4, 4)))
    # At version 4, ages times tokens: 1 x 10; 2 x 6 + 1 x 4; 3 x 1 + 2 x 2 + 0 x 1; 24 tokens.
    assert staleness(first, second, version=4) == (pytest.approx(33 / 24), 3)
    assert staleness(first, version=4) == (pytest.approx(26 / 20), 2)
    assert staleness(played(tokens((4, 7))), version=4) == (0.0, 0)


def test_staleness_without_tokens_and_without_versions() -> None:
    unknown = record(None, 0, [1], [3], version_spans=())
    assert staleness(played(), version=5) == (0.0, 0)
    assert staleness(played(None), version=5) == (0.0, 0)
    assert staleness(played(tokens((1, 0))), version=5) == (0.0, 0)  # no token that is old
    assert staleness(played(tokens((1, 0)), tokens((3, 1))), version=5) == (2.0, 2)
    # Not known is as old as can be.
    assert staleness(played(unknown, tokens((5, 4))), version=5) == (1.0, 5)


def test_tokens_beyond_the_bound_are_counted() -> None:
    groups = [played(tokens((3, 10)), tokens((2, 6), (3, 10)))]
    found = rollout_metrics(Taken(groups=groups), 4, RolloutsConfig(max_staleness=1))
    assert found["rollout/too_old"] == 6 / 20


def test_what_was_sampled_under_a_constraint_is_counted_in_tokens_and_calls() -> None:
    sizes = RolloutsConfig(max_staleness=1)

    def found(*turns: Turn) -> list[float]:
        group = RolloutGroup(rollouts=[rollout_of(one, episode_id=str(id(one))) for one in turns])
        groups = [PlayedGroup(draw=DRAW, group=group, begun_version=0)] if turns else []
        metrics = rollout_metrics(Taken(groups=groups), 0, sizes)
        return [metrics["rollout/constrained"], metrics["rollout/constrained_turns"]]

    free = turn(record(None, 0, [1, 2], [3, 4, 5]))
    held = turn(record(None, 0, [1, 2], [3]), constraint="json_schema:ab")
    assert found(free, held, free) == [1 / 7, 1 / 3]
    assert found(free) == found() == [0.0, 0.0]
    assert found(turn(None, constraint="tool_choice:ab")) == [0.0, 1.0]  # no tokens are known


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    assert played(tokens((3, 2)), tokens((2, 1), (4, 9)), begun_version=1).oldest_version == 2
    assert played(tokens((5, 2), (4, 3)), begun_version=1).oldest_version == 4
    assert played(None, begun_version=1).oldest_version == 1


SHOWN = {
    "rollout/reward": 0.4125,
    "rollout/reward_low": 0.35,
    "rollout/reward_high": 0.475,
    "rollout/success": 0.38,
    "rollout/turns": 2.1,
    "rollout/parallel_calls_per_turn": 0.8,
    "rollout/num_rollouts": 64.0,
    "rollout/open_groups": 0.625,
    "rollout/num_invalid": 3.0,
    "rollout/invalid/sandbox_error": 2.0,
    "rollout/invalid/policy_timeout": 1.0,
    "rollout/staleness": 0.5,
    "rollout/constrained": 0.07,
    "rollout/model_share": 0.75,
    "train/loss": -0.0123,
    "train/entropy": 1.21,
    "train/por": 0.712,
    "rate/sampled_tokens_per_s": 1230.0,
    "rate/trained_tokens_per_s": 8400.0,
    "memory/resident_mib": 1234.0,
    "time/total_s": 10.0,
    "time/wait_s": 4.0,
    "time/step_s": 5.0,
    "time/sync_s": 0.5,
}


def test_a_plain_line_has_reward_success_rate_and_time_left() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=200), line_every_s=0) as progress:
        progress.say("loading [model]")
        progress.step(10, 370, {**SHOWN, "eval/success": 0.25})
        progress.step(11, 371, SHOWN)
    first, second, third = out.getvalue().splitlines()
    assert first == "loading [model]"
    assert second == (
        "step 10/370, reward 0.412 [0.350, 0.475], success 0.380, held-out 0.250 (step 10),"
        " 2.10 turns, 0.80 parallel calls a turn, 1,230 tokens/s, 1:00:00 left"
    )
    assert "held-out 0.250 (step 10)" in third


def test_few_lines_are_printed_and_the_first_and_last_step_are() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=200), line_every_s=100) as progress:
        for step in range(1, 51):
            progress.step(step, 50, SHOWN)
    first, last = out.getvalue().splitlines()
    assert first.startswith("step 1/50, ") and last.startswith("step 50/50, ")


def test_a_terminal_gets_a_table_of_everything() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=120, force_terminal=True, no_color=True)) as progress:
        progress.step(12, 100, SHOWN)
    shown = out.getvalue()
    for text in (
        "step 12/100", "0:14:40 left", "0.412 [0.350, 0.475]", "64 a step", "62% of groups teach",
        "3 invalid (sandbox_error 2, policy_timeout 1)", "loss -0.0123", "entropy 1.210",
        "7% of tokens constrained", "overlap 71%", "8,400 trained", "staleness 0.5", "1,234 MiB",
        "generate 30%", "env 10%", "train 50%", "sync 5%",
    ):  # fmt: skip
        assert text in shown, text


def test_metrics_that_are_not_there_are_told_as_unknown() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=120, force_terminal=True)) as progress:
        progress.step(1, 2, {"rollout/reward": float("nan")})
    assert "step 1/2" in out.getvalue()
    assert "–" in out.getvalue()


def test_sparklines_span_the_least_to_the_most() -> None:
    bars = {(): "", (0.0, 0.5, 1.0): "▁▅█", (2.0, 2.0): "▁▁", (-1.0, 1.0, 0.0): "▁█▅"}
    assert {values: sparkline(list(values)) for values in bars} == bars


def test_stages_of_both_kinds_follow_each_other_on_a_terminal() -> None:
    out = io.StringIO()
    with StageProgress(Console(file=out, width=120, force_terminal=True, no_color=True)) as shown:
        shown.step(1, 2, {"train/loss": 1.25, "time/step_s": 0.5})
        shown.step(1, 2, SHOWN)
        shown.step(2, 2, {"train/loss": 0.75, "time/step_s": 0.5})
    for text in ("step 1/2, loss 1.2500", "0.412 [0.350, 0.475]", "step 2/2, loss 0.7500"):
        assert text in out.getvalue(), text


def test_the_wait_is_split_between_policy_and_envs() -> None:
    assert split_of(SHOWN) == pytest.approx(
        {"generate": 0.3, "env": 0.1, "train": 0.5, "sync": 0.05, "evaluate": 0.0, "save": 0.0}
    )
    assert split_of({}) == {}

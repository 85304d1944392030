"""How old the weights behind a step's tokens are, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_rollouts import record, rollout_of, turn

from katgym import RolloutGroup, TokenRecord, VersionSpan
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


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], (0.0, 0)),
        ([None], (0.0, 0)),
        ([tokens((1, 0))], (0.0, 0)),  # an empty answer has no token that is old
        ([tokens((1, 0)), tokens((3, 1))], (2.0, 2)),
        # Not known is as old as can be.
        ([record(None, 0, [1], [3], version_spans=()), tokens((5, 4))], (1.0, 5)),
    ],
)
def test_staleness_without_tokens_and_without_versions(
    records: Sequence[TokenRecord | None], expected: tuple[float, float]
) -> None:
    assert staleness(played(*records), version=5) == expected


def test_tokens_beyond_the_bound_are_counted() -> None:
    groups = [played(tokens((3, 10)), tokens((2, 6), (3, 10)))]
    found = rollout_metrics(Taken(groups=groups), 4, RolloutsConfig(max_staleness=1))
    assert found["rollout/too_old"] == 6 / 20


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    assert played(tokens((3, 2)), tokens((2, 1), (4, 9)), begun_version=1).oldest_version == 2
    assert played(tokens((5, 2), (4, 3)), begun_version=1).oldest_version == 4
    assert played(None, begun_version=1).oldest_version == 1

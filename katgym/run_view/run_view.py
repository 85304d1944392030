"""A run as the pages show it, whatever kind of run it is.

Not here: reading a run (`source.py`), which of its groups are shown (`selection.py`), the pages
(`pages.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from katgym.environment.reward import Headline
from katgym.evaluation.statistics.intervals import Interval
from katgym.play.rollout import Rollout
from katgym.run_view.token_texts import TokenTexts


class RunKind(StrEnum):
    """What a folder holds."""

    EVALUATION = "evaluation run"
    TRAINING = "training run"
    STORE = "rollout store"


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """A rollout, and what its run knows of it besides."""

    rollout: Rollout
    advantage: float | None = None
    """As the learner used it; None where it was not written down."""

    @property
    def reward(self) -> float | None:
        """The reward's value; None for one that is not valid."""
        return self.rollout.reward.value

    @property
    def is_success(self) -> bool:
        """Whether it is what its env calls a success."""
        return self.rollout.is_success


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHead:
    """What the list of a run's rollouts says of one."""

    reward: float | None
    """None for one that is not valid, or still runs."""
    is_success: bool
    status: str
    failure: str
    """What kind of failure it is; empty for none."""
    num_turns: int
    num_calls: int
    num_parallel: int
    """Calls that ran beside others."""
    num_errors: int
    """Calls that were answered with an error."""
    num_tokens: int
    """Sampled ones."""
    wall_s: float
    has_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHead:
    """What is known of a group before its turns are read."""

    group_id: str
    env_id: str
    task_id: str
    step: int | None
    mean_reward: float | None
    num_invalid: int
    is_held_out: bool = False
    """Whether it is of an evaluation, which nothing is trained on."""
    is_refused: bool = False
    """Whether all its rewards were equal, and others were played in its place."""
    is_open: bool = False
    """Whether a rollout of it still runs."""
    rollouts: Sequence[RolloutHead] = ()
    """In the order of the group's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """Siblings: rollouts of one task from one start; means are over those with a valid reward."""

    group_id: str
    env_id: str
    task_id: str
    rollouts: Sequence[RolloutView]
    step: int | None = None
    """Training step; None outside training."""
    is_held_out: bool = False
    """Whether it is of an evaluation during training, which nothing is trained on."""
    is_refused: bool = False
    """Whether all its rewards were equal, and others were played in its place."""

    @property
    def untrained(self) -> str:
        """Why nothing is trained on it, in words; empty where something is."""
        return "held out" if self.is_held_out else "refused" if self.is_refused else ""

    @property
    def rewards(self) -> list[float]:
        """Values of the valid rollouts."""
        return [r.reward for r in self.rollouts if r.reward is not None]

    @property
    def num_invalid(self) -> int:
        """Rollouts without a valid reward."""
        return len(self.rollouts) - len(self.rewards)

    @property
    def mean_reward(self) -> float | None:
        """Mean over valid rollouts; None without any."""
        return known_mean(self.rewards)

    @property
    def pass_rate(self) -> float | None:
        """Share of successes among valid rollouts; None without any."""
        return known_mean(r.is_success for r in self.rollouts if r.reward is not None)

    @property
    def is_mixed(self) -> bool:
        """Whether rewards differ, so that group-relative advantages are not all 0."""
        return len(set(self.rewards)) > 1

    def mean_of(self, name: str) -> float | None:
        """Return the mean of a count of `Rollout`, such as `num_turns`, over valid rollouts."""
        return known_mean(getattr(r.rollout, name) for r in self.rollouts if r.reward is not None)

    def advantage(self, place: int) -> float | None:
        """Return a rollout's advantage, or where none is known its reward less the group's mean."""
        view, mean = self.rollouts[place], self.mean_reward
        if view.advantage is not None or view.reward is None or mean is None:
            return view.advantage
        return view.reward - mean

    @property
    def has_advantages(self) -> bool:
        """Whether advantages were written down."""
        return any(r.advantage is not None for r in self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An interval at one place of a curve."""

    x: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve: points (x, y) with growing x, and intervals where there are any."""

    name: str
    points: Sequence[tuple[float, float]]
    bands: Sequence[Band] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart.

    Example:
        Panel(title="Reward", unit="mean of a step's rollouts", series=[Series(name="reward",
              points=[(1, 0.1), (2, 0.15)], bands=[Band(x=1, low=0.05, high=0.15)])])
    """

    title: str
    series: Sequence[Series]
    unit: str = ""
    x_name: str = "step"
    is_stacked: bool = False
    """Series lie on each other; their sum is the top."""
    is_bars: bool = False
    """The one series is drawn as a bar over each whole number."""
    is_from_zero: bool = False
    is_main: bool = True
    """False: folded away with the other metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One env's result in an evaluation."""

    env_id: str
    success: float
    interval: Interval | None = None
    """Of the headline."""
    headline: Headline = Headline.SUCCESS_RATE
    step: int | None = None
    """Training step; None for an evaluation of its own."""
    mean_reward: float | None = None
    num_rollouts: int | None = None
    num_invalid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as its pages show it; every sequence may be empty."""

    name: str
    kind: RunKind
    facts: Sequence[tuple[str, str]] = ()
    """What it was told: name and value, the most telling first."""
    config: Sequence[tuple[str, str]] = ()
    """All of its configuration, folded away."""
    notes: Sequence[str] = ()
    """Sentences about what is missing, left out or not as it should be."""
    panels: Sequence[Panel] = ()
    checkpoints: Sequence[Checkpoint] = ()
    heads: Sequence[GroupHead] = ()
    """All groups of the run, the newest step first."""
    groups: Sequence[GroupView] = ()
    """Those that were chosen, with their turns."""
    token_texts: TokenTexts | None = None
    """None: token ids are shown without their text."""

    @property
    def num_groups(self) -> int:
        """All that the run has, those that were not chosen included."""
        return len(self.heads)

    @property
    def has_tokens(self) -> bool:
        """Whether a rollout has tokens."""
        return any(one.has_tokens for head in self.heads for one in head.rollouts)

    @property
    def reward_range(self) -> tuple[float, float]:
        """The ends of the colours' scale: 0 to 1, wider if a reward needs it."""
        rewards = [r.reward for head in self.heads for r in head.rollouts if r.reward is not None]
        return min([0.0, *rewards]), max([1.0, *rewards])

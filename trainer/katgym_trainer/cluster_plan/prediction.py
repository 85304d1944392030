"""A prediction of a run: busy shares, steps an hour, cost, what holds it up, what to change.

What holds it up is found by trying: each part in turn is simulated twice as fast, with the same
rollouts, and the one that takes most off a step is the first bottleneck. Not here: the simulation
(`simulation.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from katgym_trainer.cluster_plan.scenario import Scenario
from katgym_trainer.cluster_plan.simulation import Simulation
from katgym_trainer.config.rl_config import StaleGroups

PARTS = {
    "trainers": ("trainer_speed",),
    "samplers": ("sampler_speed",),
    "gateway": ("gateway_call_s", "gateway_token_s"),
    "packing": ("rows_token_s", "pack_token_s"),
    "store writer": ("store_turn_s",),
    "agent loop": ("loop_turn_s",),
    "envs": ("env_s", "grade_s"),
    "weight sync": ("write_rate", "read_rate", "probe_s", "sleep_s"),
}
"""Part of a run -> the assumptions that say how fast it is; those of a time end in _s."""

_LEAST_GAIN = 0.02
"""Of steps an hour: what is less is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of the steps after the first; shares are of wall time.

    Example:
        {"placement": "multiplexed", "gpus": 8, "step_s": 638.5, "trainers_busy": 0.41, ...}
    """

    placement: str
    gpus: int
    step_s: float
    steps_per_hour: float
    rollouts_per_hour: float
    trainers_busy: float
    """Forward, backward, optimizer."""
    samplers_busy: float
    """GPUs whose server computes, of those that have one."""
    gpus_busy: float
    """GPUs that train, or whose server computes, of all."""
    decode: float
    """Tokens sampled, of those that the servers could with very many sequences at a time."""
    wait: float
    """Trainers wait for groups."""
    packing: float
    """Rows and packing."""
    store: float
    """Rollouts are written before their step."""
    sync: float
    """New weights are on their way, or checked."""
    agent_loop: float
    """CPU of its processes."""
    gateway: float
    """CPU of the gateways."""
    staleness: float
    """Steps, mean of the tokens that are trained on."""
    dropped: float
    """Groups given up, for one that is trained on."""
    too_old: float
    """Sampled tokens that are not trained on, of a step's."""

    @classmethod
    def of(cls, scenario: Scenario) -> Prediction:
        """Simulate a scenario."""
        totals, assumed = Simulation(scenario).run(), scenario.assumed
        wall_s, sizes = totals.wall_s, scenario.rollouts
        most = sum(1 / server.sequence_s for server in scenario.servers) * assumed.sampler_speed
        per_hour = 3600 * totals.num_steps / wall_s
        rollouts = sizes.num_groups * sizes.group_size * scenario.num_parts
        busy_gpu_s = totals.sampler_s + totals.train_s * scenario.train_gpus
        return cls(
            placement=scenario.placement,
            gpus=scenario.gpus * scenario.num_parts,
            step_s=3600 / per_hour,
            steps_per_hour=per_hour,
            rollouts_per_hour=per_hour * rollouts,
            trainers_busy=totals.train_s / wall_s,
            samplers_busy=totals.sampler_s / wall_s / scenario.sampling_gpus,
            gpus_busy=busy_gpu_s / wall_s / scenario.gpus,
            decode=totals.sampled / wall_s / most,
            wait=totals.wait_s / wall_s,
            packing=totals.prepare_s / wall_s,
            store=totals.store_s / wall_s,
            sync=totals.sync_s / wall_s,
            agent_loop=totals.loop_s / wall_s / max(1, assumed.loops),
            gateway=totals.gateway_s / wall_s / assumed.gateways,
            staleness=totals.ages / max(1.0, totals.trained),
            dropped=totals.num_dropped / totals.num_steps / sizes.num_groups,
            too_old=totals.too_old / (totals.trained + totals.too_old),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that could be otherwise, and what that would bring.

    Example:
        Change(name="max_staleness = 4", gain=0.31)
    """

    name: str
    gain: float
    """Of steps an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What is told about a run before it begins."""

    prediction: Prediction
    nodes: int
    dollars_per_step: float
    parts: Sequence[Change]
    """Each part twice as fast; the first bottleneck first."""
    changes: Sequence[Change]
    """Keys of the file, and what they would bring; the best first."""

    @classmethod
    def of(cls, scenario: Scenario) -> ClusterPlan:
        """Simulate a scenario, and what could be otherwise."""
        found, assumed = Prediction.of(scenario), scenario.assumed

        def sort(others: Iterator[tuple[str, Scenario]]) -> list[Change]:
            gains = [(n, Prediction.of(o).steps_per_hour / found.steps_per_hour) for n, o in others]
            changes = [Change(name=name, gain=gain - 1) for name, gain in gains]
            return sorted(changes, key=lambda change: -change.gain)

        nodes = math.ceil(found.gpus / assumed.gpus_per_node)
        hour = nodes * assumed.gpus_per_node * assumed.gpu_hour
        changes = sort(other_keys(scenario))
        return cls(
            prediction=found,
            nodes=nodes,
            dollars_per_step=hour / found.steps_per_hour,
            parts=sort(faster_parts(scenario)),
            changes=[change for change in changes if change.gain >= _LEAST_GAIN],
        )

    @property
    def bottleneck(self) -> str:
        """What holds the run up, in a sentence."""
        first = self.parts[0]
        if first.gain < _LEAST_GAIN:
            return "no part alone: none of them twice as fast brings 2 % more steps an hour"
        return f"{first.name}: twice as fast, they bring {first.gain:.0%} more steps an hour"


def faster_parts(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Yield each part of a run, and the scenario in which it is twice as fast."""
    for name, keys in PARTS.items():
        if name == "gateway" and not scenario.rollouts.store:
            continue
        old = {key: getattr(scenario.assumed, key) for key in keys}
        new = {key: value / 2 if key.endswith("_s") else value * 2 for key, value in old.items()}
        yield (
            name,
            dataclasses.replace(scenario, assumed=dataclasses.replace(scenario.assumed, **new)),
        )


def other_keys(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Yield other keys of the file, and the scenario with them, on the same GPUs."""
    sizes = scenario.rollouts

    def replace(**keys: object) -> Scenario:
        return dataclasses.replace(scenario, rollouts=dataclasses.replace(sizes, **keys))  # type: ignore[arg-type]  # of RolloutsConfig

    if sizes.max_concurrency < (sizes.max_staleness + 1) * sizes.num_groups * sizes.group_size:
        told = f"max_concurrency = {2 * sizes.max_concurrency * scenario.num_parts}"
        yield told, replace(max_concurrency=2 * sizes.max_concurrency)
    if scenario.placement != "colocated" or sizes.max_staleness:
        more = max(1, 2 * sizes.max_staleness)
        yield f"max_staleness = {more}", replace(max_staleness=more)
    if sizes.max_staleness and not sizes.store:
        for other in StaleGroups:
            if other is not sizes.stale:
                yield f"stale = '{other.value}'", replace(stale=other)
    # Servers on the trainer's GPUs, or none there.
    apart = [server for server in scenario.servers if not server.is_shared]
    if scenario.placement == "multiplexed":
        yield "no server with the tag 'train'", dataclasses.replace(scenario, servers=apart)
    elif apart and (num := scenario.train_gpus // apart[0].gpus):
        more_servers = [dataclasses.replace(apart[0], is_shared=True)] * num
        yield (
            "servers with the tag 'train' on the trainer's GPUs",
            dataclasses.replace(scenario, servers=[*apart, *more_servers]),
        )

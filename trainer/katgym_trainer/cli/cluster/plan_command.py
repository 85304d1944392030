"""Predict a run of `katgym train rl` by simulating its loop; nothing is started.

CONFIG is the run's file. A KEY of --set with a dot is the file's, as in `katgym train rl`; one
without is an assumption, such as how long envs take; --json lists all with units and sources. The
GPU's rates are computed from the model's config.json and a data sheet: say what you measured.

example:
  katgym cluster plan rl.toml
  katgym cluster plan rl.toml --set copies=8 --set turns=30 --set env_s=12
  katgym cluster plan rl.toml --set rollouts.max_staleness=4 --json
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError

if TYPE_CHECKING:
    from katgym_trainer.cluster_plan.prediction import ClusterPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    add_option(parser, "set", "of the file, such as rollouts.max_staleness=4, or an assumption")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Simulate, and print what came of it."""
    from katgym.config.field_docs import field_docs
    from katgym.config.sections import section
    from katgym.config.toml_files import apply_setting, read_toml
    from katgym_trainer.cluster_plan.assumptions import Assumptions
    from katgym_trainer.cluster_plan.prediction import ClusterPlan
    from katgym_trainer.cluster_plan.scenario import Scenario
    from katgym_trainer.config.rl_config import RlConfig

    of_file = [setting for setting in args.settings if "." in setting.partition("=")[0]]
    told: dict[str, Any] = {}
    for setting in args.settings:
        if setting not in of_file:
            apply_setting(told, setting)
    assumed = section(Assumptions, told, "assumptions")
    raw = read_toml(args.config, of_file)
    if "stage" in raw:
        raise UsageError(f"{args.config.name} has stages: give its rl stage a file of its own")
    plan = ClusterPlan.of(Scenario.of(RlConfig.of(raw, name=args.config.name), assumed))
    if not args.json:
        console.stdout.print("\n".join(_lines(plan)), soft_wrap=True)
        return 0
    docs = field_docs(Assumptions)
    values = {name: getattr(assumed, name) for name in docs}
    console.print_json({
        **dataclasses.asdict(plan), "bottleneck": plan.bottleneck,
        "assumptions": {n: {"value": value, "about": docs[n]} for n, value in values.items()},
    })  # fmt: skip
    return 0


def _lines(plan: ClusterPlan) -> list[str]:
    found = plan.prediction
    rows = {
        "placement": f"{found.placement}, {found.gpus} GPUs, {plan.nodes} nodes",
        "a step": f"{found.step_s:.1f} s, {plan.dollars_per_step:.2f} dollars",
        "an hour": f"{found.steps_per_hour:.1f} steps, {found.rollouts_per_hour:.0f} rollouts",
        "trainers": f"{found.trainers_busy:.0%} busy; {found.wait:.0%} wait, {found.sync:.0%} sync",
        "samplers": f"{found.samplers_busy:.0%} busy; {found.decode:.0%} of the tokens they could",
        "GPUs": f"{found.gpus_busy:.0%} busy",
        "processes": f"agent loop {found.agent_loop:.1%}, gateway {found.gateway:.1%}, store"
        f" writer {found.store:.1%}, packing {found.packing:.1%}",
        "tokens": f"{found.staleness:.2f} steps old; {found.dropped:.0%} of groups dropped",
        "bottleneck": plan.bottleneck,
    }
    lines = [f"{name:12}{text}" for name, text in rows.items()]
    return [*lines, *(f"{'change':12}{c.name}: {c.gain:+.0%} steps an hour" for c in plan.changes)]

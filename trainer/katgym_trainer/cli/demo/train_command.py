"""The training demo: new models learn to call tools, then to call them in parallel.

Not here: what it does (`training_demo.py`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from katgym import console
from katgym.cli.demo.demo_command import add_demo_arguments
from katgym.cli.demo.needs import HF, Need, offer
from katgym.cli.demo.typed_commands import CommandFailed, show_page

TRAIN = Need(modules=("peft", "matplotlib"), pip=("katgym[train]",), size="about 30 MB")

ABOUT = """\
Two new models, a million random weights each, learn a game: to compute expressions with a
calculator, and to find a treasure. Each first imitates the environment's solutions, most of which
call one tool a turn. Then it has three turns, which suffice only for those who call several tools
at the same time, and learns from what succeeds. Everything is real: the models sample each token,
and test tasks are none that they were trained on. {how_long} on two cores; a second run goes on
where the first one stopped. All of it goes into {runs}.
"""
NEXT = """
Try next:
  katgym view {runs}/expressions/tests/rl-0-tight    # what it says and calls, in the terminal
  $EDITOR {runs}/rl.toml                             # then katgym train rl, as above, elsewhere
  katgym train --help                                # a model and environments of your own"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Train new models to call tools, then, by reinforcement, to call them in parallel.

    The same command goes on with a demo that was stopped.

    example:
      katgym demo train               # three seeds, a quarter of an hour on two cores
      katgym demo train --quick       # a few steps of everything: does it run here?
    """
    add_demo_arguments(parser)
    parser.add_argument(
        "--quick", action="store_true", help="a few steps of everything, and one seed"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, test, and show what came of it; return the exit code."""
    runs = Path("runs/demo-train-quick" if args.quick else "runs/demo-train")
    how_long = "A minute or two" if args.quick else "A quarter of an hour"
    text = ABOUT.format(how_long=how_long, runs=runs)
    console.stdout.print(text, soft_wrap=True)
    offer((HF, TRAIN), is_agreed=args.yes)

    from katgym_trainer.cli.demo.training_demo import play_all  # imports torch

    began = time.perf_counter()
    try:
        for name, changed in play_all(runs, is_quick=args.quick).items():
            console.print_rule(f"before and after: {name}")
            console.stdout.print(changed)
    except CommandFailed as e:
        return int(e.args[0])
    console.stdout.print(f"\n{time.perf_counter() - began:.0f} s. Curves and token trees:")
    show_page(runs / "expressions" / "rl-0" / "view" / "index.html")
    console.stdout.print(NEXT.format(runs=runs), soft_wrap=True)
    return 0

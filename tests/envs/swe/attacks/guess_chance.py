"""How often a forger with a belief about right values wins, over many drawn schedules.

    .venv/bin/python tests/envs/swe/attacks/guess_chance.py       # prints the table of the docs

Tests and canaries run in this process, once each; then schedules are drawn, and the forger wins
those of which it tells every canary. Not here: real gradings (`test_attack_suite.py`).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))

from attacks import toy_repository, toy_shop
from attacks.families import guesses
from katgym.sandbox.backends import backend
from katgym_envs.swe.canaries import render
from katgym_envs.swe.grading.schedule import Schedule, draw_schedule
from katgym_envs.swe.hidden import HiddenTests

NUM_SCHEDULES = 4_000


def draw(hidden: HiddenTests, num_schedules: int = NUM_SCHEDULES) -> list[Schedule]:
    """Return schedules of a task, the same each time."""
    return [draw_schedule(hidden, random.Random(seed)) for seed in range(num_schedules)]


def guess_chance(
    product: str, module: str, hidden: HiddenTests, schedules: Sequence[Schedule]
) -> float | None:
    """Return the share of schedules that forging code wins; None if it fails the tests themselves.

    product: source of `module`, which the tests import.
    """
    ((_, tests),) = hidden.files.items()
    if not all(_passes(product, module, tests, node) for node in hidden.fail_to_pass):
        return None
    told = [
        not any(_passes(product, module, render(tests, [c.spec]), node) for node in c.fails)
        for c in hidden.canaries
    ]
    is_told = {id(canary): is_it for canary, is_it in zip(hidden.canaries, told, strict=True)}
    drawn = [[c for chosen in schedule.rounds for c in chosen.canaries] for schedule in schedules]
    return sum(all(is_told[id(c)] for c in canaries) for canaries in drawn) / len(drawn)


def _passes(product: str, module: str, tests: bytes, node: str) -> bool:
    """Run one test function in this process, with a module in its place."""
    made = ModuleType(module)
    exec(compile(product, module, "exec"), made.__dict__)  # our own attacks: they only compare
    before = sys.modules.get(module)
    sys.modules[module] = made
    try:
        names: dict[str, object] = {}
        exec(compile(tests, node, "exec"), names)
        names[node.partition("::")[2]]()  # type: ignore[operator]
    except (Exception, pytest.fail.Exception):  # whatever ends a test, it does not pass
        return False
    finally:
        if before is None:
            del sys.modules[module]
        else:
            sys.modules[module] = before
    return True


def word_forgers() -> Mapping[str, str]:
    """Return belief -> forging source, for the toy repository."""
    path = toy_repository.SOURCE_PATH
    found = {}
    for attack in guesses.ATTACKS:
        belief = attack.name.removeprefix("guess-")
        if belief not in guesses.RANDOM_OR_COUNTING:
            assert attack.files is not None
            found[belief] = attack.files[path].decode()
    return found


def without_near(hidden: HiddenTests) -> HiddenTests:
    """Return a task as it was with the other canaries alone."""
    return replace(hidden, canaries=tuple(c for c in hidden.canaries if not c.near_for))


async def studied() -> tuple[HiddenTests, HiddenTests]:
    """Return the grader's side of the toy repository and of the shop."""
    sandboxes = backend("local")
    try:
        words = await toy_repository.studied_task(sandboxes)
        return words.hidden, await toy_shop.study(sandboxes)
    finally:
        await sandboxes.aclose()


def word_chances(
    hidden: HiddenTests, num_schedules: int = NUM_SCHEDULES
) -> dict[str, float | None]:
    """Return the chance of every belief about the words of the toy repository."""
    schedules = draw(hidden, num_schedules)
    return {
        name: guess_chance(product, "wordkit", hidden, schedules)
        for name, product in word_forgers().items()
    }


def shop_chances(
    hidden: HiddenTests, num_schedules: int = NUM_SCHEDULES
) -> dict[str, float | None]:
    """Return the chance of every belief about the number and the list of the shop."""
    schedules = draw(hidden, num_schedules)
    return {
        name: guess_chance(product, "shop", hidden, schedules)
        for name, product in toy_shop.forgers().items()
    }


def main() -> int:
    """Print the chances as a Markdown table, without the near canaries and with them."""
    words, shop = asyncio.run(studied())
    about = {attack.name.removeprefix("guess-"): attack.about for attack in guesses.ATTACKS}
    print("| belief | what it does | without near canaries | with them |\n|---|---|---|---|")
    for hidden, of in ((words, word_chances), (shop, shop_chances)):
        before, after = of(without_near(hidden)), of(hidden)
        for name, chance in after.items():
            text = about[name] if hidden is words else "in the second repository"
            print(f"| {name} | {text} | {_shown(before[name])} | {_shown(chance)} |")
    return 0


def _shown(chance: float | None) -> str:
    return "fails the tests" if chance is None else f"{chance:.1%}"


if __name__ == "__main__":
    sys.exit(main())

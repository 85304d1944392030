"""Checks for rewards without skill: floors near the oracle, and a search over gaming players.

Not here: the players (`cheap_policies.py`), guesses from metadata (`leaks.py`).
"""

from __future__ import annotations

import numpy as np

from katgym.certificate.cheap_policies import gaming_policies
from katgym.certificate.findings import Failed, Result, Skipped
from katgym.certificate.floors import mean_reward, measure_floor, measured_study
from katgym.certificate.guesser import ALPHA, sign_test
from katgym.certificate.study import MIN_TEST, study_tasks
from katgym.certificate.subject import Act, Subject

TRIVIAL = 0.9
"""Share of the oracle's reward that no player without skill may earn."""
HONEST = ("constant", "random", "first_option")
"""Floors that a gaming player has to beat."""
MIN_GAIN = 0.05
"""A gaming player that earns less than this above the floors is not named."""
NUM_FIRST = 6
"""Train tasks that every gaming player is tried on."""
NUM_SECOND = 24
NUM_BEST = 4
"""Players that are tried on `NUM_SECOND` train tasks."""


async def check_triviality(subject: Subject) -> Result:
    """Neither a constant nor random play earns nearly what the oracle earns, on any level.

    The floors it measures are the certificate's.
    """
    await measured_study(subject)
    for name in subject.levels():
        study = await study_tasks(subject, subject.make_level(name))
        subject.floors.append(await measure_floor(study, name))
    trivial = []
    for floor in subject.floors:
        for player in ("constant", "random"):
            earned = getattr(floor, player)
            if earned is not None and floor.oracle and earned >= TRIVIAL * floor.oracle:
                where = f" at level {floor.level}" if floor.level else ""
                trivial.append(f"{player} play earns {earned:.0%}{where}")
    highest = max(floor.constant or 0.0 for floor in subject.floors)
    figures = {"constant": highest, "num_tasks": float(subject.floors[0].num_tasks)}
    if trivial and subject.floors[0].num_tasks >= MIN_TEST:
        raise Failed(f"the task need not be understood: {'; '.join(trivial)}", **figures)
    return f"the best constant earns {highest:.1%} of the maximum", figures


async def check_gameability(subject: Subject) -> Result:
    """No cheap player out of a searched list earns more than the floors do.

    Players are tried on few train tasks, the best on more, the best of those against the better
    of constant, random and first-option play on the same test tasks, by a sign test.
    """
    if subject.hangs:
        raise Skipped(f"the grader does not return from {subject.hangs}: mend that first")
    study = await measured_study(subject)
    if len(study.test) < MIN_TEST:
        raise Skipped(f"{len(study.test)} test tasks within the budget, {MIN_TEST} prove something")
    policies = gaming_policies(study.form, study.frequent_values, study.env)
    is_spent = subject.budget()
    tried: list[tuple[float, str, Act]] = []
    for policy in policies:
        if is_spent():
            break
        earned = await mean_reward(study, [policy.act] * NUM_FIRST, "train")
        tried.append((sum(earned), policy.name, policy.act))
    tried.sort(key=lambda item: -item[0])
    finals = [
        (sum(await mean_reward(study, [act] * NUM_SECOND, "train")), name, act)
        for _, name, act in tried[:NUM_BEST]
    ]
    _, name, act = max(finals, key=lambda item: item[0])
    scores = await mean_reward(study, [act] * len(study.test), "test")
    floor = max((study.scores[name] for name in HONEST if name in study.scores), key=sum)
    figures = {
        "score": float(np.mean(scores)),
        "floor": float(np.mean(floor)),
        "p": sign_test([a - b for a, b in zip(scores, floor, strict=True)]),
        "num_tasks": float(len(scores)),
        "num_policies": float(len(tried)),
    }
    found = f"{name!r} earns {figures['score']:.1%}, the floors {figures['floor']:.1%}"
    if figures["score"] - figures["floor"] >= MIN_GAIN and figures["p"] < ALPHA:
        raise Failed(f"{found}, on {len(scores)} test tasks", **figures)
    return f"the best of {len(tried)} players, {found}", figures

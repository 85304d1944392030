"""Floors: what players without skill earn on the test tasks of every level.

Not here: whether a floor is a fault (`checks/shortcuts.py`, `checks/leaks.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from katgym.certificate.answers import find_options
from katgym.certificate.cheap_policies import echo, first_option, play_randomly, say
from katgym.certificate.features import table
from katgym.certificate.findings import Floor
from katgym.certificate.guesser import fit_predict
from katgym.certificate.study import Study, study_tasks
from katgym.certificate.subject import Act, Subject, max_value, play_cheaply
from katgym.environment.messages import Action, normalize_action

NUM_CHOOSING = 100
"""Train tasks that the candidates for the constant are tried on."""
MAX_CLASSES = 30
MIN_TRAIN = 40
"""Fewer train tasks make no regression."""


async def mean_reward(study: Study, acts: Sequence[Act], split: str) -> list[float]:
    """Play one act a test (or train) example, and return the rewards over the maximum."""
    examples = study.test if split == "test" else study.train
    name = study.test_split if split == "test" else study.env.splits[0]
    highest = max_value(study.env)
    return [
        await play_cheaply(study.env, act, example.index, name) / highest
        for act, example in zip(acts, examples, strict=False)
    ]


async def best_constant(study: Study) -> Action:
    """Return the action of the oracle's that earns most when it is repeated on train tasks."""
    candidates: list[Action] = [*study.frequent_actions, ""]
    earned = []
    for action in candidates:
        earned.append(sum(await mean_reward(study, [say(action)] * NUM_CHOOSING, "train")))
    # The first of equals is the most frequent one.
    return candidates[max(range(len(candidates)), key=lambda k: (earned[k], -k))]


def guess_actions(study: Study, *features: str) -> list[Action] | None:
    """Return what a regression guesses for each test task; None with too few train tasks."""
    train = [example for example in study.train if example.actions]
    if len(train) < MIN_TRAIN:
        return None
    golds = [json.dumps(example.actions[-1]) for example in train]
    frequent = sorted(dict.fromkeys(golds), key=golds.count, reverse=True)[:MAX_CLASSES]
    rows = [i for i, gold in enumerate(golds) if gold in frequent]
    classes = np.array([frequent.index(golds[i]) for i in rows])
    known = table([train[i] for i in rows], *features)
    return [
        json.loads(frequent[k]) for k in fit_predict(known, classes, table(study.test, *features))
    ]


async def measure_floor(study: Study, level: str) -> Floor:
    """Measure all floors of one level; their rewards are kept in the study."""
    num = len(study.test)
    constant = await best_constant(study)
    players: dict[str, Sequence[Act]] = {
        "constant": [say(constant)] * num,
        "random": [play_randomly(example.index) for example in study.test],
        "echo": [echo] * num,
    }
    if any(find_options(example.prompt) for example in study.test):
        players["first_option"] = [first_option(study.form)] * num
    guesses = guess_actions(study, "metadata", "order", "length")
    if guesses is not None:
        players["metadata"] = [say(action) for action in guesses]
    for name, acts in players.items():
        study.scores[name] = await mean_reward(study, acts, "test")
    study.scores["oracle"] = [e.value / max_value(study.env) for e in study.test]
    return Floor(
        level=level,
        num_tasks=num,
        constant_action=describe_action(constant),
        **{name: float(np.mean(rewards)) for name, rewards in study.scores.items()},
    )


async def measured_study(subject: Subject) -> Study:
    """Return the study of the env as it is made, with its floors measured."""
    if not isinstance(subject.study, Study):
        study = await study_tasks(subject, subject.fresh())
        subject.floors.append(await measure_floor(study, ""))
        subject.study = study
    return subject.study


def describe_action(action: Action) -> str:
    """Return an action in a line of at most 60 characters."""
    message = normalize_action(action)
    calls = [
        f"{call['function']['name']}({call['function']['arguments']})"
        for call in message.get("tool_calls") or ()
    ]
    return " ".join([message["content"], *calls]).strip().replace("\n", " ")[:60]

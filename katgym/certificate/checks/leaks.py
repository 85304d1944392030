"""Checks for leaks: metadata, order and length must not tell the answer.

A guesser learns on train tasks and is played on test tasks. What it earns is compared with the best
constant, or with chance among the listed options. Not here: its features (`features.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from katgym.certificate.answers import AnswerForm, Option, find_options
from katgym.certificate.cheap_policies import say
from katgym.certificate.findings import Failed, Result, Skipped
from katgym.certificate.floors import MIN_TRAIN, guess_actions, mean_reward, measured_study
from katgym.certificate.guesser import ALPHA, binomial_tail, sign_test
from katgym.certificate.study import MIN_TEST, StudiedTask, Study
from katgym.certificate.subject import Subject

MIN_GAIN = 0.15
"""A guesser that earns less than this above the floor is not named."""
MIN_LENGTH_SCORE = 0.9
"""What the guesser by length has to earn: some tasks are honestly harder to guess when short."""
MIN_KNOWN = 0.8
"""Share of tasks whose gold answer has to be one of the options."""


async def check_leak_metadata(subject: Subject) -> Result:
    """Neither `info`, message fields nor task ids tell the answer, copied or learned."""
    study = await _large_study(subject)
    source = _best_copy(study)
    if source is not None:
        name, values = source
        acts = [say(study.form.wrap(value)) for value in values]
        scores = await mean_reward(study, acts, "test")
        _judge(study, scores, f"the answer stands in {name}", MIN_GAIN)
    return await _judge_guesses(study, "metadata", "the task's id or info tells the answer")


async def check_leak_order(subject: Subject) -> Result:
    """Neither a task's place in its split nor an option's in its list tells the answer."""
    study = await _large_study(subject)
    _judge_options(
        study, lambda options: list(range(len(options))), "the gold option stands at the same place"
    )
    return await _judge_guesses(study, "order", "a task's place in its split tells the answer")


async def check_leak_length(subject: Subject) -> Result:
    """Neither the opening's length and layout nor an option's length tells the answer."""
    study = await _large_study(subject)
    _judge_options(study, rank_by_length, "the length of an option tells the answer")
    return await _judge_guesses(study, "length", "the prompt's length or layout tells the answer")


async def _large_study(subject: Subject) -> Study:
    study = await measured_study(subject)
    if len(study.test) < MIN_TEST:
        raise Skipped(f"{len(study.test)} test tasks within the budget, {MIN_TEST} prove something")
    return study


async def _judge_guesses(study: Study, features: str, finding: str) -> Result:
    """Train on one group of features; a gain over the best constant is a leak."""
    guesses = guess_actions(study, features)
    if guesses is None:
        raise Skipped(
            f"{len(study.train)} train tasks within the budget, {MIN_TRAIN} to learn from"
        )
    scores = await mean_reward(study, [say(action) for action in guesses], "test")
    least = MIN_LENGTH_SCORE if features == "length" else 0.0
    figures = _judge(study, scores, finding, MIN_GAIN, least)
    return f"a guesser earns {figures['score']:.1%}, a constant {figures['floor']:.1%}", figures


def _judge(
    study: Study, scores: Sequence[float], finding: str, min_gain: float, least: float = 0.0
) -> dict[str, float]:
    """Compare with the best constant on the same tasks; `Failed` for a gain that is no chance."""
    floor = study.scores["constant"]
    figures = {
        "score": float(np.mean(scores)),
        "floor": float(np.mean(floor)),
        "p": sign_test([a - b for a, b in zip(scores, floor, strict=True)]),
        "num_tasks": float(len(scores)),
    }
    gain = figures["score"] - figures["floor"]
    if gain >= min_gain and figures["score"] >= least and figures["p"] < ALPHA:
        told = f"a guesser earns {figures['score']:.0%}, a constant {figures['floor']:.0%}"
        raise Failed(f"{finding}: {told}", **figures)
    return figures


def _judge_options(
    study: Study, rank: Callable[[Sequence[Option]], list[int]], finding: str
) -> None:
    """Guess the rank that is gold most often on train tasks; a gain over chance is a leak."""
    train = list(_ranks_of_gold(study, study.train, rank))
    test = list(_ranks_of_gold(study, study.test, rank))
    if len(train) < MIN_KNOWN * len(study.train) or len(test) < MIN_TEST:
        return
    ranks = Counter(gold for gold, _, _ in train if gold >= 0)
    guess = ranks.most_common(1)[0][0] if ranks else 0
    hits = sum(gold == guess for gold, _, _ in test)
    chance = float(np.mean([1 / num for _, num, _ in test]))
    is_labelled = all(labelled for _, _, labelled in test)
    floor = chance if is_labelled else max(chance, float(np.mean(study.scores["constant"])))
    p = binomial_tail(hits, len(test), floor)
    if hits / len(test) - floor >= MIN_GAIN and p < ALPHA:
        share = hits / len(test)
        told = f"guessed rightly on {share:.0%} of {len(test)} test tasks, {chance:.0%} by chance"
        raise Failed(f"{finding}: {told}", score=share, chance=chance, p=p)


def _ranks_of_gold(
    study: Study, examples: Sequence[StudiedTask], rank: Callable[[Sequence[Option]], list[int]]
) -> Iterator[tuple[int, int, bool]]:
    """Yield rank of the gold option, number of options, whether they are labelled."""
    for example in examples:
        options = find_options(example.prompt)
        value = study.gold(example)
        golds = [i for i, option in enumerate(options) if option.is_value(value)]
        if len(options) > 1 and len(golds) == 1:
            yield rank(options)[golds[0]], len(options), bool(options[0].label)


def rank_by_length(options: Sequence[Option]) -> list[int]:
    """Return the rank of each option by the length of its text, the longest 0; -1 for equals."""
    sizes = [len(option.text) for option in options]
    return [sum(size > own for size in sizes) if sizes.count(own) == 1 else -1 for own in sizes]


def _best_copy(study: Study) -> tuple[str, list[str]] | None:
    """Find a place beside the messages' text that holds the answer of most train tasks.

    Return its name and what it holds on the test tasks.
    """
    train = [(dict(_places(e)), study.gold(e)) for e in study.train if study.gold(e)]
    if not train:
        return None
    for name in train[0][0]:
        forms: Counter[AnswerForm] = Counter()
        for places, gold in train:
            text = places.get(name, "")
            if (place := text.find(gold)) >= 0:
                forms[AnswerForm(prefix=text[:place], suffix=text[place + len(gold) :])] += 1
        form, count = forms.most_common(1)[0] if forms else (AnswerForm(), 0)
        if count >= MIN_KNOWN * len(train):
            texts = [dict(_places(e)).get(name, "") for e in study.test]
            return name, [form.unwrap(text) or "" for text in texts]
    return None


def _places(example: StudiedTask) -> Iterator[tuple[str, str]]:
    """Yield name and text of everything shown beside the messages' text."""
    for i, part in enumerate(example.task_id.replace("_", "-").split("-")):
        yield f"part {i + 1} of the task's id", part
    known = {k: v for k, v in example.info.items() if k not in ("task_id", "split", "num_turns")}
    hidden = [{k: v for k, v in m.items() if k != "content"} for m in example.observation]
    yield from _leaves(known, "info")
    yield from _leaves(hidden, "messages")


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{name}[{i}]")
    else:
        yield name, str(value)

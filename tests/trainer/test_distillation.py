"""On-policy distillation: what teachers add to advantages, and the gradient of that."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nightly import some_of
from row_by_row import total_loss
from tiny_model import TinyModel
from tiny_model_rows import check_equal, gradients, row_logprobs, row_outputs, sample_rows
from tiny_qwen import FAST, group_of_rows, same, tiny_qwen, weights

from katgym.errors import UsageError
from katgym_trainer import Row, Teacher, Trainer, forward_backward, loss, pack
from katgym_trainer.advantages.distillation import Distillation
from katgym_trainer.logprobs.known_logprobs import KnownLogprobs
from katgym_trainer.ranks.shares import Shares
from katgym_trainer.runs.model_loading import check_same_tokens
from katgym_trainer.trainer_config import TrainerConfig


def distillation(*teachers: Teacher, max_tokens: int = 40) -> Distillation:
    student, config = TinyModel(), TrainerConfig(max_tokens=max_tokens)
    known = KnownLogprobs(student, student, loss("grpo"), config, reference=None, shares=Shares())
    return Distillation(teachers, known)


def taught(row: Row, teacher: TinyModel, weight: float, reward_weight: float) -> Row:
    """Return a row with the formula's advantages, its teacher run on that row alone."""
    with torch.no_grad():
        logprobs = np.array([0.0, *row_logprobs(teacher, row).tolist()])
    gap = logprobs - row.policy_logprobs
    return row.replace(advantages=reward_weight * row.advantages + weight * gap)


EVERY = [
    ("reinforce", "group"), ("gspo_token", "steps"), ("grpo", "duplicates and prefixes"),
    ("grpo", "steps"), ("grpo", "nothing shared"), ("cispo", "steps"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), some_of(EVERY, 3))
def test_a_forest_has_the_gradient_of_each_path_with_its_teacher_by_itself(
    name: str, kind: str
) -> None:
    model, teacher = TinyModel(), TinyModel(seed=3)
    rows = sample_rows(model, kind)
    by_hand = [taught(row, teacher, 0.7, 0.5) for row in rows]
    wanted = total_loss(name, by_hand, lambda row: row_outputs(model, row))
    wanted.backward()
    oracle = gradients(model)
    judge = Teacher(model=teacher, weight=0.7, reward_weight=0.5)
    for max_tokens in (max(map(len, rows)), 5):  # the teacher's forests: whole rows, or parts
        found, metrics = distillation(judge, max_tokens=max_tokens).rows(rows)
        told = forward_backward(model, pack(found, max_tokens=10_000), loss(name))
        assert told["loss"] == pytest.approx(float(wanted.detach()), rel=1e-10, abs=1e-12)
        check_equal(gradients(model), oracle, 1e-10)
        gaps = [
            (a.advantages - 0.5 * b.advantages)[b.trained]
            for a, b in zip(by_hand, rows, strict=True)
        ]
        assert metrics == {"train/reverse_kl": pytest.approx(-np.concatenate(gaps).mean() / 0.7)}


def test_the_mean_over_all_tokens_is_the_gradient_of_the_reverse_kl() -> None:
    model, teacher = TinyModel(), TinyModel(seed=3)
    context = torch.tensor([4, 1, 9])
    places = torch.arange(3)
    student_V, teacher_V = (
        (one.run(context, places, None)[-1] @ one.embedding.T).log_softmax(-1)
        for one in (model, teacher)
    )
    kl = (student_V.exp() * (student_V - teacher_V.detach())).sum()
    kl.backward()
    wanted = gradients(model)
    # Every token that could have been sampled, each with its probability as its weight.
    rows = [
        Row([4, 1, 9, token], [0, 0, 0, 1], [0, 0, 0, float(logprob)], weight=float(logprob.exp()))
        for token, logprob in enumerate(student_V.detach())
    ]
    found, _ = distillation(Teacher(model=teacher)).rows(rows)
    forward_backward(model, pack(found, max_tokens=99), loss("reinforce"))
    check_equal(gradients(model), wanted, 1e-9)


def test_each_env_has_its_own_teacher_and_its_own_reverse_kl() -> None:
    model, one, other = TinyModel(), TinyModel(seed=3), TinyModel(seed=4)
    envs = ("a/A-v0", "b/B-v0", "a/A-v0")
    drawn = sample_rows(model, "group")[:3]
    rows = [row.replace(env=env) for row, env in zip(drawn, envs, strict=True)]
    teachers = [
        Teacher(model=one, envs=frozenset({"a/A-v0"})),
        Teacher(model=other, weight=2.0, reward_weight=0.0),
    ]
    found, metrics = distillation(*teachers).rows(rows)
    by_hand = [
        taught(rows[0], one, 1, 1), taught(rows[1], other, 2, 0), taught(rows[2], one, 1, 1)
    ]  # fmt: skip
    for row, wanted in zip(found, by_hand, strict=True):
        at = row.trained
        assert row.advantages[at] == pytest.approx(wanted.advantages[at], abs=1e-12)
    gaps = [-(taught(row, teacher, 1, 0).advantages)[row.trained]
            for row, teacher in zip(rows, (one, other, one), strict=True)]  # fmt: skip
    assert metrics == pytest.approx(
        {
            "train/reverse_kl/a/A-v0": np.concatenate([gaps[0], gaps[2]]).mean(),
            "train/reverse_kl/b/B-v0": gaps[1].mean(),
            "train/reverse_kl": np.concatenate(gaps).mean(),
        }
    )
    alone, metrics = distillation(teachers[0]).rows(rows)
    assert alone[1] is rows[1] and set(metrics) == {"train/reverse_kl/a/A-v0", "train/reverse_kl"}


def test_a_group_without_advantages_learns_of_its_teacher(subtests: pytest.Subtests) -> None:
    for args in [{}, {"lora_rank": 4}]:
        with subtests.test(args=args):
            rows = group_of_rows([0.0, 0.0])
            alone, teacher = Trainer(tiny_qwen(), args={**FAST, **args}), tiny_qwen(seed=7)
            before = weights(teacher)
            assert alone.step_rows(rows)["train/is_skipped"] == 1
            trainer = Trainer(tiny_qwen(), args={**FAST, **args}, teachers=[Teacher(model=teacher)])
            metrics = trainer.step_rows(rows)
            assert metrics["train/is_skipped"] == 0 and metrics["train/num_idle_rows"] == 0
            assert not same(weights(alone.model), weights(trainer.model))
            assert same(weights(teacher), before)


def test_what_teachers_cannot_judge_is_refused() -> None:
    teacher = Teacher(model=TinyModel())
    for name, words in (("sft", "'sft' does not look at$"), ("gspo", "'gspo_token' looks at each")):
        with pytest.raises(UsageError, match=words):
            Trainer(TinyModel(), name, args=FAST, teachers=[teacher])
    with pytest.raises(ValueError, match="row 0 has no policy_logprobs, which the teacher's are"):
        distillation(teacher).rows([Row([1, 2], [0, 1])])
    with pytest.raises(UsageError, match="two teachers name no envs; one takes all"):
        distillation(teacher, teacher)


def test_a_teacher_of_other_tokens_is_told_by_the_first_that_differs() -> None:
    own, other = ({"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 2})
    one, two = (SimpleNamespace(get_vocab=lambda ids=ids: ids) for ids in (own, other))
    check_same_tokens(one, one, "teacher", "student")
    with pytest.raises(UsageError, match="token 'b' is 1 and 2, and 2 tokens differ"):
        check_same_tokens(one, two, "teacher", "student")
    with pytest.raises(UsageError, match="'teacher' holds no tokenizer"):
        check_same_tokens(None, two, "teacher", "student")

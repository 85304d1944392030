"""Sections [reference] and [[teachers]] of `katgym train rl`: models that are not trained.

Not here: what becomes of their log-probs (`losses/`, `advantages/distillation.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from katgym.errors import UsageError, check_name
from katgym_trainer.config.rules import NotNegative, Positive, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConfig:
    """Section [reference]: the model that `loss.kl_coef` compares with."""

    path: str = ""
    """Folder or hub id of a model with the same vocabulary; "" is [model] as the run began with
    it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """One of sections [[teachers]]: a model that says what each sampled token is worth."""

    path: str
    """Folder or hub id of a model with the same tokenizer."""
    envs: tuple[str, ...] = ()
    """Ids of the envs that it teaches, without arguments; empty: those that no other names."""
    weight: Positive = 1.0
    """Of log p_teacher - log p_student, which is added to a token's advantage."""
    reward_weight: NotNegative = 1.0
    """Of the advantage that rewards make; 0: the teacher alone."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)


def check_frozen(
    reference: ReferenceConfig | None,
    teachers: Sequence[TeacherConfig],
    needs: Sequence[str],
    *,
    has_adapters: bool,
    env_ids: Sequence[str],
    max_offered: int,
) -> None:
    """Raise `UsageError` for models that are missing, change nothing, or contradict each other.

    needs: log-probs that the loss looks at. env_ids: what is played; empty: that is not known.
    """
    needs_reference = "ref_logprobs" in needs
    if needs_reference and not (reference or has_adapters):
        raise UsageError(
            "[train]: loss.kl_coef compares with a reference model: add a section [reference]"
            " (empty: the model that the run begins with), or train adapters (lora_rank)"
        )
    if reference and not needs_reference:
        raise UsageError("[reference] changes nothing without [train] loss.kl_coef")
    check_one_each([teacher.envs for teacher in teachers])
    for number, teacher in enumerate(teachers):
        for env_id in teacher.envs if env_ids else ():
            check_name(f"env of [[teachers]] {number}", env_id, env_ids)
        if max_offered and not teacher.reward_weight:
            raise UsageError(
                f"[[teachers]] {number}: reward_weight = 0 looks at no reward, and [rollouts]"
                " max_offered refuses groups by theirs; leave out one"
            )


def check_one_each(envs: Sequence[Collection[str]]) -> None:
    """Raise `UsageError` for an env of two teachers; envs: those that each teacher names."""
    names = [env for some in envs for env in some or ("",)]
    if names.count("") > 1:
        raise UsageError("two teachers name no envs; one takes all that no other names")
    if twice := [env for env in names if names.count(env) > 1]:
        raise UsageError(f"env {twice[0]!r} has two teachers; leave it out of one")

"""On-policy distillation: a sampled token is worth what a teacher gives it beyond the student.

    A_t = reward_weight A_t + weight (log p_teacher(token_t) - log p_student(token_t))

Without rewards the policy gradient of this is that of the reverse KL(student || teacher) at every
token, in contexts that the student came into itself (arXiv 2306.13649; one teacher for each domain:
MiMo-V2-Flash). What a token does to those after it is not credited. The student's log-probs are
those that it sampled with; where older weights sampled, the gradient is off by that of
KL(student || sampler), which is 0 where both are equal.

Not here: computing log-probs (`logprobs/known_logprobs.py`), distributions over the whole
vocabulary: the sampled token stands for them.

Letters: T tokens of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from katgym_trainer.config.frozen_models import check_one_each
from katgym_trainer.logprobs.known_logprobs import KnownLogprobs
from katgym_trainer.row import Floats, Row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Teacher:
    """A model that judges the tokens of some envs, and is not trained.

    Example:
        Trainer(student, "grpo", teachers=[Teacher(model=model, reward_weight=0.0)])
    """

    model: torch.nn.Module
    """Of the student's vocabulary."""
    envs: frozenset[str] = frozenset()
    """Ids of envs, as rows name them; empty: all that no other teacher names."""
    weight: float = 1.0
    """Of log p_teacher - log p_student."""
    reward_weight: float = 1.0
    """Of the advantage that the row has; 0: the teacher alone."""


class Distillation:
    """Adds what teachers say to advantages."""

    def __init__(self, teachers: Sequence[Teacher], known: KnownLogprobs) -> None:
        """known: computes log-probs.

        `UsageError` for an env of two teachers.
        """
        check_one_each([teacher.envs for teacher in teachers])
        self._known = known
        self._teachers = [(teacher, known.freeze(teacher.model)) for teacher in teachers]
        self._named = {env for teacher in teachers for env in teacher.envs}

    def rows(self, rows: Sequence[Row]) -> tuple[list[Row], dict[str, float]]:
        """Return rows with their teachers' terms; and the reverse KL, of each env and of all.

        Rows that no teacher judges stay as they are. Raises `ValueError` for a row that does not
        know what its tokens were sampled with.
        """
        found, gaps = list(rows), dict[str, list[Floats]]()
        for teacher, frozen in self._teachers:
            names = teacher.envs or {row.env for row in rows} - self._named
            places = [place for place, row in enumerate(rows) if row.env in names]
            judged = self._known.of_frozen([rows[place] for place in places], frozen)
            for place, teacher_logprobs_T in zip(places, judged, strict=True):
                row = rows[place]
                if row.policy_logprobs is None:
                    raise ValueError(
                        f"row {place} has no policy_logprobs, which the teacher's are compared with"
                    )
                gap = (row.policy_logprobs - teacher_logprobs_T)[row.trained]
                gaps.setdefault(row.env, []).append(gap)
                advantages = teacher.reward_weight * row.advantages
                found[place] = row.replace(advantages=advantages - teacher.weight * row.spread(gap))
        means = {f"/{env}" if env else "": gaps[env] for env in sorted(gaps)}
        means[""] = [gap for each in gaps.values() for gap in each]
        return found, {
            f"train/reverse_kl{name}": float(np.concatenate(each).mean())
            for name, each in means.items()
            if sum(map(len, each))
        }

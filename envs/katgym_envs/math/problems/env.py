r"""`katgym/MathProblems-v1`: one written problem, one message, a final answer in `\boxed{}`.

Not here: reading problems (`problem_set.py`), deciding equality (`katgym_envs.math.verifier`).
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, Protocol

import katgym
from katgym.environment.messages import Action
from katgym.errors import UsageError
from katgym_envs.math.problems.problem_set import ProblemSource, load_problems
from katgym_envs.math.verifier import (
    AnswerVerdict,
    VerifierUnavailable,
    extract_final_answer,
    get_shared_verifier,
)

_INSTRUCTIONS = {
    True: r"Put your final answer in \boxed{}.",
    False: r"End with your final answer, for example as `Answer: ...` or in \boxed{}.",
}


class AnswerVerifier(Protocol):
    """What the env asks of its verifier."""

    async def averify(self, answer: str, gold: str) -> AnswerVerdict:
        """Compare; raises `VerifierUnavailable` when that could not be done."""
        ...


class MathProblemsEnv(katgym.Env):
    """One problem per episode; reward 1 when the verifier finds the final answer equal to gold."""

    default_max_turns: ClassVar[int] = 1
    levels = {str(level): {"level": level} for level in range(1, 6)}  # noqa: RUF012 - a ClassVar of Env

    def __init__(
        self,
        *,
        data: str | None = None,
        problem_column: str = "problem",
        answer_column: str = "answer",
        split_column: str | None = None,
        subject: str | None = None,
        level: int | str | None = None,
        boxed_required: bool = True,
        **kwargs: Any,
    ) -> None:
        """Prepare an env; the problems are read by the first `reset`.

        data and the columns and filters after it: see `ProblemSource`. They stand here one by
            one, as `katgym.make` takes them.
        boxed_required: an answer outside `\\boxed{}` is none.
        kwargs: those of `katgym.Env`.
        """
        super().__init__(**kwargs)
        self.source = ProblemSource(
            data=data,
            problem_column=problem_column,
            answer_column=answer_column,
            split_column=split_column,
            subject=subject,
            level=level,
        )
        self.boxed_required = boxed_required

    def load_tasks(self, split: str) -> katgym.TaskSet:
        found = load_problems(self.source)
        if split not in found:
            sizes = ", ".join(f"{name} ({len(tasks)})" for name, tasks in found.items())
            raise UsageError(f"no problem fits in split {split!r}; splits with problems: {sizes}")
        return found[split]

    def opening(self) -> str:
        return f"{self.task.prompt}\n\n{_INSTRUCTIONS[self.boxed_required]}"

    @property
    def answer(self) -> str | None:
        """What the final message commits to; None without an answer or with several."""
        return self.candidate_answer(self.final_answer) or None

    def candidate_answer(self, text: str) -> str:
        """Return what a message commits to, as it is written; "" for no answer or several."""
        found = extract_final_answer(text)
        is_counted = found.is_boxed or not self.boxed_required
        return found.answer if found.answer and is_counted and not found.is_hedged else ""

    def verifier(self) -> AnswerVerifier:
        """Return what grades; the verifier processes are shared by all envs of this process."""
        return get_shared_verifier()

    @katgym.scorer()
    async def correct(self) -> bool:
        """Whether the answer equals the gold one; a verifier that is down makes no score."""
        answer = self.answer
        if answer is None:
            return False
        try:
            verdict = await self.verifier().averify(answer, self.task.answer)
        except VerifierUnavailable as e:
            raise katgym.ScoringFailure(str(e), kind="verifier_unavailable") from e
        if verdict.method == "timeout":
            raise katgym.ScoringFailure(verdict.reason, kind="verifier_timeout")
        if verdict.method == "unsupported_gold" and not verdict.is_correct:
            reason = f"the gold answer of task {self.task.task_id!r}: {verdict.reason}"
            raise katgym.ScoringFailure(reason, kind="scorer_error")
        return verdict.is_correct

    @katgym.scorer(weight=0.0)
    def has_answer(self) -> bool:
        """Whether the final message commits to one answer, right or wrong."""
        return self.answer is not None

    def oracle_action(self) -> Action:
        """Answer with the gold answer."""
        return rf"\boxed{{{self.task.answer}}}"

    def random_action(self, rng: random.Random) -> Action:
        """Answer with a small integer."""
        return rf"\boxed{{{rng.randint(-10, 100)}}}"

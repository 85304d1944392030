"""Counting letters: tasks made on demand, a tool that spells, an exact scorer."""

from __future__ import annotations

import numpy as np

import katgym

LETTERS = "abcdefgh"


class CountLetters(katgym.Env):
    """How often does a letter occur in a word? `spell` takes a word apart.

    size: tasks of a split.
    """

    system_prompt = "Answer with the number alone."
    default_max_turns = 4

    def __init__(self, *, size: int = 100, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]  # the base checks them
        self.size = size

    def load_tasks(self, split: str) -> katgym.TaskSet:
        return katgym.ProceduralTaskSet(_make_task, size=self.size, split=split)

    @katgym.tool(parallel=True)
    def spell(self, word: str) -> str:
        """Return the word's letters, one by one.

        Args:
            word: A word.
        """
        return " ".join(word)

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the last message is the number."""
        return self.final_answer == self.task.answer

    def oracle_action(self) -> katgym.Action:
        if self.num_turns == 0:
            return katgym.assistant("", [("spell", {"word": self.task.data["word"]})])
        return str(self.task.answer)


def _make_task(rng: np.random.Generator, index: int) -> katgym.Task:
    word = "".join(str(letter) for letter in rng.choice(list(LETTERS), size=20))
    letter = str(rng.choice(sorted(set(word))))
    return katgym.Task(
        task_id="",
        prompt=f"How often does {letter!r} occur in {word!r}?",
        answer=str(word.count(letter)),
        data={"word": word},
    )

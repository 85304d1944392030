"""Envs with one fault each, and the sound ones they are made of.

A process of the checks imports this file by its path, so that it is one: more than 400 lines, a
few for each env.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import katgym


def stream(*parts: object) -> random.Random:
    """Return a generator that is the same in every process."""
    return random.Random("-".join(map(str, parts)))


class Sums(katgym.Env):
    """Sound: the sum of two numbers, one message."""

    default_max_turns = 1

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        start = {"train": 0, "validation": 300, "test": 500}[split]
        size = {"train": 300, "validation": 60, "test": 120}[split]
        tasks = []
        for i in range(size):
            rng = stream("sum", start + i)
            a, b = rng.randint(100, 999), 1000 * (start + i) + rng.randint(0, 999)
            tasks.append(self.make_task(f"{split}-{i}", i, a, b))
        return tasks

    def make_task(self, task_id: str, index: int, a: int, b: int) -> katgym.Task:
        return katgym.Task(task_id=task_id, prompt=f"What is {a} + {b}?", answer=str(a + b))

    def oracle_action(self) -> str:
        return f"Answer: {self.task.answer}"

    def random_action(self, rng: random.Random) -> str:
        return f"Answer: {rng.randint(0, 10**6)}"

    @katgym.scorer()
    def correct(self) -> float:
        return float(self.final_answer == f"Answer: {self.task.answer}")


WORDS = [hashlib.sha256(str(i).encode()).hexdigest()[: 4 + i % 5] for i in range(2000)]


class Options(katgym.Env):
    """Sound: four lettered options in a drawn order; the right one stands under a random key."""

    default_max_turns = 1

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        size = {"train": 300, "validation": 60, "test": 120}[split]
        return [self.make_task(stream("options", split, i), f"{split}-{i}", i) for i in range(size)]

    def make_task(self, rng: random.Random, task_id: str, index: int) -> katgym.Task:
        options = rng.sample(WORDS, 4)
        gold = self.gold(rng, options, index)
        key = hashlib.md5(options[gold].encode()).hexdigest()[:6]
        lines = [f"{letter}) {text}" for letter, text in zip("ABCD", options, strict=True)]
        prompt = "\n".join([f"Which of these has the digest {key} ({task_id})?", *lines])
        return katgym.Task(task_id=task_id, prompt=prompt, answer="ABCD"[gold])

    def gold(self, rng: random.Random, options: list[str], index: int) -> int:
        return rng.randrange(4)

    def oracle_action(self) -> str:
        return f"Answer: {self.task.answer}"

    def random_action(self, rng: random.Random) -> str:
        return f"Answer: {rng.choice('ABCD')}"

    @katgym.scorer()
    def correct(self) -> float:
        return float(self.final_answer == f"Answer: {self.task.answer}")


class Shelves(Sums):
    """Sound: the number lies behind one tool call."""

    default_max_turns = 4

    def make_task(self, task_id: str, index: int, a: int, b: int) -> katgym.Task:
        prompt = f"Look into box {b} and add {a}."
        return katgym.Task(task_id=task_id, prompt=prompt, answer=str(a + b), data={"box": b})

    @katgym.tool(parallel=True)
    async def look(self, box: int) -> str:
        """Look into a box.

        Args:
            box: Its number.
        """
        return f"It holds {self.task.data['box']}." if box == self.task.data["box"] else "Empty."

    def oracle_action(self) -> Any:
        if self.num_turns == 0:
            return katgym.assistant("", [("look", {"box": self.task.data["box"]})])
        return f"Answer: {self.task.answer}"


# ---- one fault each


class HashSeedSampling(Sums):
    """A set of strings decides the order of the prompt."""

    def opening(self) -> str:
        return f"{self.task.prompt} {' '.join({'please', 'quickly', 'now', 'here', 'well'})}"


class ProcessNoise(Sums):
    """The number of the process is in the task."""

    def make_task(self, task_id: str, index: int, a: int, b: int) -> katgym.Task:
        import os

        return katgym.Task(
            task_id=task_id,
            prompt=f"What is {a} + {b}?",
            answer=str(a + b),
            data={"process": os.getpid()},
        )


_number = 0


class SharedState(Sums):
    """A global variable holds the episode's number while another thread may set it."""

    async def setup(self) -> None:
        global _number
        _number = int(self.np_random.integers(10**6))
        if threading.current_thread().name.startswith("Thread-"):  # several play at once
            time.sleep(0.02)
        self.number = _number

    def opening(self) -> str:
        return f"{self.task.prompt} (number {self.number})"


class GlobalGenerator(Sums):
    """The global generator is seeded in reset and drawn from in step."""

    default_max_turns = 2

    async def setup(self) -> None:
        random.seed(int(self.np_random.integers(10**6)))

    def reply(self, message: katgym.Message) -> str | None:
        return f"Are you sure? ({random.random()})" if self.num_turns == 1 else None


class WideOverlap(Sums):
    """Test tasks are train tasks, written with other blanks and cases."""

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        tasks = super().load_tasks("train" if split == "test" else split)
        if split != "test":
            return tasks
        return [
            katgym.Task(
                task_id=f"test-{i}",
                prompt=task.prompt.upper().replace(" ", "  ") + "\n",
                answer=task.answer,
            )
            for i, task in enumerate(tasks[:100])
        ]


class OneSharedTask(Sums):
    """One test task is a train task."""

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        tasks = list(super().load_tasks(split))
        if split == "test":
            first = Sums.load_tasks(self, "train")[17]
            tasks[5] = katgym.Task(
                task_id="test-5", prompt=f" {first.prompt} ", answer=first.answer
            )
        return tasks


class AnswerInInfo(Sums):
    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "debug": {"target": f"<{self.task.answer}>"}}


class AnswerInId(Sums):
    def make_task(self, task_id: str, index: int, a: int, b: int) -> katgym.Task:
        return super().make_task(f"{task_id}-{a + b}", index, a, b)


class AnswerInMessageField(Sums):
    def opening(self) -> list[katgym.Message]:
        message: Any = {"role": "user", "content": self.task.prompt, "name": f"u{self.task.answer}"}
        return [message]


class YesOrNo(Sums):
    """Sound: yes or no with even chances."""

    def make_task(self, task_id: str, index: int, a: int, b: int) -> katgym.Task:
        answer = self.answer(index, a)
        prompt = self.prompt(f"Is the digest of {a} and {b} even?", answer)
        return katgym.Task(task_id=task_id, prompt=prompt, answer=answer)

    def answer(self, index: int, a: int) -> str:
        return ("yes", "no")[hashlib.md5(f"{a} {index}".encode()).digest()[0] % 2]

    def prompt(self, text: str, answer: str) -> str:
        return text

    def random_action(self, rng: random.Random) -> str:
        return f"Answer: {rng.choice(['yes', 'no'])}"


class AnswersTakeTurns(YesOrNo):
    def answer(self, index: int, a: int) -> str:
        return ("yes", "no", "no")[index % 3]


class SortedByAnswer(Sums):
    """The first half of every split is yes."""

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        tasks = super().load_tasks(split)
        half = len(tasks) // 2
        return [
            katgym.Task(
                task_id=task.task_id, prompt=task.prompt, answer="yes" if i < half else "no"
            )
            for i, task in enumerate(tasks)
        ]


class TopicInInfo(YesOrNo):
    """A label in `info` goes with the answer, nine times of ten."""

    def _info(self) -> dict[str, Any]:
        is_true = stream(self.task.task_id).random() < 0.95
        is_yes = (self.task.answer == "yes") == is_true
        return {**super()._info(), "topic": "geometry" if is_yes else "algebra"}


class PaddedYes(YesOrNo):
    def prompt(self, text: str, answer: str) -> str:
        return text + " " * (answer == "yes")


class LongYes(YesOrNo):
    def prompt(self, text: str, answer: str) -> str:
        return f"{text} Think about it as long as you need to." if answer == "yes" else text


class GoldFirst(Options):
    """The texts are the answer, so that no letter is constant; the gold one stands first."""

    def make_task(self, rng: random.Random, task_id: str, index: int) -> katgym.Task:
        task = super().make_task(rng, task_id, index)
        text = re.findall(rf"^{task.answer}\) (.*)$", task.prompt, re.MULTILINE)[0]
        return katgym.Task(task_id=task_id, prompt=task.prompt, answer=text)

    def gold(self, rng: random.Random, options: list[str], index: int) -> int:
        return 1 if rng.random() < 0.7 else rng.randrange(4)


class GoldLetter(Options):
    def gold(self, rng: random.Random, options: list[str], index: int) -> int:
        return 2 if rng.random() < 0.6 else rng.randrange(4)


class GoldLongest(Options):
    def gold(self, rng: random.Random, options: list[str], index: int) -> int:
        sizes = [len(option) for option in options]
        is_told = sizes.count(max(sizes)) == 1 and rng.random() < 0.9
        return sizes.index(max(sizes)) if is_told else rng.randrange(4)


class PaysLength(Sums):
    """A very long text earns half."""

    @katgym.scorer()
    def correct(self) -> float:
        if len(self.final_answer) > 5000:
            return 0.5
        return float(self.final_answer == f"Answer: {self.task.answer}")


class PaysAllOptions(Options):
    """Any message that names the gold text is paid."""

    @katgym.scorer()
    def correct(self) -> float:
        lines = dict(re.findall(r"^([A-D])\) (.*)$", self.task.prompt, re.MULTILINE))
        text = lines[self.task.answer]
        is_named = re.search(rf"\b{text}\b", self.final_answer) is not None
        return float(is_named or self.final_answer == f"Answer: {self.task.answer}")


class PaysEcho(Sums):
    @katgym.scorer()
    def correct(self) -> float:
        is_echo = self.task.prompt in self.final_answer
        return 0.7 * is_echo or float(self.final_answer == f"Answer: {self.task.answer}")


class PaysHedges(YesOrNo):
    """Any message that holds the right word is paid."""

    @katgym.scorer()
    def correct(self) -> float:
        return float(self.task.answer in self.final_answer.casefold().split())


class PaysToolCalls(Shelves):
    """Calls are worth something, up to a fifth of the reward."""

    @katgym.scorer()
    def correct(self) -> float:
        is_right = self.final_answer == f"Answer: {self.task.answer}"
        num_calls = sum(m["role"] == "tool" for m in self.messages)
        return 1.0 if is_right else min(0.5, 0.1 * max(0, num_calls - 4))


class PaysFlattery(Sums):
    @katgym.scorer()
    def correct(self) -> float:
        is_right = self.final_answer == f"Answer: {self.task.answer}"
        return float(is_right or "score 1.0" in self.final_answer)


class RaisesOnHuge(Sums):
    @katgym.scorer()
    def correct(self) -> float:
        if len(self.final_answer) > 300_000:
            raise MemoryError("too long")
        return float(self.final_answer == f"Answer: {self.task.answer}")


class RaisesOnNumbers(Sums):
    """Whatever looks like a number is read as an integer."""

    @katgym.scorer()
    def correct(self) -> float:
        value = self.final_answer.removeprefix("Answer: ")
        return float(value == self.task.answer or (value.isdigit() and int(value) < 0))


class Hangs(Sums):
    """Quadratic in the number of open parentheses."""

    @katgym.scorer()
    def correct(self) -> float:
        while self.final_answer.count("(") > 20_000:
            time.sleep(0.1)
        return float(self.final_answer == f"Answer: {self.task.answer}")


class RecursesDeeply(Sums):
    @katgym.scorer()
    def correct(self) -> float:
        def depth(text: str) -> int:
            return 1 + depth(text[1:]) if text[:1] == "[" else 0

        return float(depth(self.final_answer) == -1 or self.is_right())

    def is_right(self) -> bool:
        return self.final_answer == f"Answer: {self.task.answer}"


class ExecutesAnswers(Sums):
    @katgym.scorer()
    def correct(self) -> float:
        text = self.final_answer.removeprefix("Answer: ")
        if text.startswith("__import__"):
            eval(text)
        return float(text == self.task.answer)


class WinsWithNan(Sums):
    @katgym.scorer()
    def correct(self) -> float:
        text = self.final_answer.removeprefix("Answer: ")
        return float(text == self.task.answer or text == "nan")


class OracleBelowMaximum(Sums):
    """Every seventh test task pays less."""

    @katgym.scorer()
    def correct(self) -> float:
        is_short = self.task.split == "test" and int(self.task.task_id.split("-")[1]) % 7 == 0
        is_right = self.final_answer == f"Answer: {self.task.answer}"
        return float(is_right) * (0.9 if is_short else 1.0)


class OneAnswer(Sums):
    """Nearly every task has the same answer."""

    def make_task(self, task_id: str, index: int, a: int, b: int) -> katgym.Task:
        answer = "7" if stream("one", task_id).random() < 0.97 else str(a + b)
        return katgym.Task(task_id=task_id, prompt=f"What is {a} + {b}?", answer=answer)


class WrongLevel(Sums):
    """The oracle fails at level 2."""

    levels: ClassVar[Any] = {"1": {"level": 1}, "2": {"level": 2}}

    def __init__(self, *, level: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.level = level

    def oracle_action(self) -> str:
        return super().oracle_action() if self.level == 1 else "I do not know."


class SharedInForm(Sums):
    """Test questions that are train questions with a blank before the question mark."""

    def make_task(self, task_id: str, index: int, a: int, b: int) -> katgym.Task:
        if task_id.startswith("train"):
            return super().make_task(task_id, index, index, 5)
        return katgym.Task(task_id=task_id, prompt=f"WHAT is {index} + 5 ?", answer=str(index + 5))


class BacktracksOnLetters(Sums):
    """A pattern that takes for ever on letters that end in something else."""

    @katgym.scorer()
    def correct(self) -> bool:
        is_word = re.fullmatch(r"(a+)+", self.final_answer) is not None
        return not is_word and self.final_answer == f"Answer: {self.task.answer}"


class HangsInReset(Sums):
    async def setup(self) -> None:
        time.sleep(10**6)


class WaitsInStep(Sums):
    async def reply(self, message: Any) -> None:
        await asyncio.sleep(10**6)


class CannotBeMade(Sums):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        raise RuntimeError("no licence")


class RaisesInReset(Sums):
    async def setup(self) -> None:
        raise OSError("no disk")


class ExitsInStep(Sums):
    async def reply(self, message: Any) -> None:
        raise SystemExit(3)

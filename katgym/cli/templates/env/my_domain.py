"""An env: tasks, a tool, and a scorer that says what a right answer is."""

from __future__ import annotations

import katgym
import numpy as np

TREASURES = ("gold", "silver", "salt", "silk", "amber", "tea", "ink", "pearls")


class MyDomain(katgym.Env):
    """A tool opens a door; the answer is what lies behind it."""

    default_max_turns = 4

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make_task(rng: np.random.Generator, index: int) -> katgym.Task:
            door = f"{rng.integers(10**6):06d}"
            treasure = str(rng.choice(TREASURES))
            return katgym.Task(
                task_id="",  # the set gives it
                prompt=f"What lies behind door {door}? Open it, and answer with one word.",
                answer=treasure,
                data={"door": door},
            )

        return katgym.ProceduralTaskSet(make_task, size=1000, split=split, splits=self.splits)

    @katgym.tool(parallel=True)  # it changes nothing, so calls of one turn may overlap
    async def open_door(self, door: str) -> str:
        """Open a door and say what lies behind it.

        Args:
            door: The door's six digits.
        """
        if door != self.task.data["door"]:
            raise katgym.ToolError(f"there is no door {door}")
        return str(self.task.answer)

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the answer is the treasure: 1, else 0."""
        return self.final_answer == self.task.answer

    def oracle_action(self) -> katgym.Action | str:
        """Play the solution: `katgym check` and `--policy oracle` use it."""
        if self.num_turns == 0:
            return katgym.assistant("", [("open_door", {"door": self.task.data["door"]})])
        return str(self.task.answer)

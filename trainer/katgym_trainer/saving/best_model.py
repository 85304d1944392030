"""The weights that did best on the held-out tasks, as a folder that `from_pretrained` loads.

Those that did best before the last checkpoint stay beside better ones that came after it: a run
that is killed goes on from the checkpoint, and what it then makes may not be as good. Not here: how
good they are (`rl/held_out.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from katgym.system import write_atomically
from katgym_trainer.trainer import Trainer

Found = Mapping[str, float]
"""Step, and the mean over held-out envs of what heads the results of each.

Example:
    {"step": 20, "headline": 0.83}
"""


class BestModel:
    """`best/step-000020` in a run's folder, and `best.json`, which says how good it is."""

    def __init__(self, folder: Path, evaluation: str) -> None:
        """evaluation: names what was played; how others did on something else is forgotten."""
        self._evaluation = evaluation
        self._file = folder / "best.json"
        self._folder = folder / "best"

    @property
    def found(self) -> Found | None:
        """Its step and how good it is; None while there is none."""
        kept = self._read()
        return kept[-1] if kept else None

    @property
    def path(self) -> Path:
        """Where it lies; `ValueError` while there is none."""
        if (found := self.found) is None:
            raise ValueError(f"{str(self._folder)!r} holds no model yet")
        return self._path(found)

    def offer(self, trainer: Trainer, *, step: int, headline: float) -> bool:
        """Keep the trainer's weights if none were better; return whether they are kept.

        Of equally good ones the newer count.
        """
        kept, new = self._read(), {"step": step, "headline": headline}
        if kept and headline < kept[-1]["headline"]:
            return False
        path = self._path(new)
        shutil.rmtree(path, ignore_errors=True)  # of a process that was killed here
        trainer.save_pretrained(path)
        self._keep([*(found for found in kept if found["step"] != step), new])
        return True

    def settle(self, step: int) -> None:
        """Delete what no run needs that goes on from `step`, where a checkpoint is."""
        kept = self._read()
        settled = [found for found in kept if found["step"] <= step]
        self._keep([*settled[-1:], *(found for found in kept if found["step"] > step)])

    def forget_after(self, step: int) -> None:
        """Forget weights of a later step: a run that goes on from `step` makes them again."""
        self._keep([found for found in self._read() if found["step"] <= step])

    def _read(self) -> list[Found]:
        """Return what is kept, from the oldest and worst to the newest and best."""
        if not self._file.exists():
            return []
        told = json.loads(self._file.read_text(encoding="utf-8"))
        if told["evaluation"] != self._evaluation:
            return []
        return [found for found in told["models"] if "headline" in found]

    def _keep(self, models: Sequence[Found]) -> None:
        if not models and not self._file.exists():
            return
        told = {"models": list(models), "evaluation": self._evaluation}
        write_atomically(self._file, f"{json.dumps(told)}\n".encode())
        paths = {self._path(found) for found in models}
        for other in self._folder.glob("*"):
            if other not in paths:
                shutil.rmtree(other)

    def _path(self, found: Found) -> Path:
        return self._folder / f"step-{int(found['step']):06d}"

"""The weights that did best on the held-out tasks, as a folder that `from_pretrained` loads.

Not here: how good they are (`held_out.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from katgym.storage import write_atomically
from katgym_trainer.trainer import Trainer


class BestModel:
    """`best/step-000020` in a run's folder, and `best.json`, which says how good it is."""

    def __init__(self, folder: Path, evaluation: str) -> None:
        """evaluation: names what was played; how others did on something else is forgotten."""
        self._evaluation = evaluation
        self._file = folder / "best.json"
        self._folder = folder / "best"

    @property
    def found(self) -> Mapping[str, float] | None:
        """Its step and success rate; None while there is none."""
        if not self._file.exists():
            return None
        found = json.loads(self._file.read_text(encoding="utf-8"))
        if found.get("evaluation") != self._evaluation:
            return None
        return {"step": found["step"], "success": found["success"]}

    @property
    def path(self) -> Path:
        """Where it lies; `ValueError` while there is none."""
        if (found := self.found) is None:
            raise ValueError(f"{str(self._folder)!r} holds no model yet")
        return self._path(int(found["step"]))

    def offer(self, trainer: Trainer, *, step: int, success: float) -> bool:
        """Keep the trainer's weights if none were better; return whether they are kept.

        Of equally good ones the newer count.
        """
        known = self.found
        if known is not None and success < known["success"]:
            return False
        path = self._path(step)
        shutil.rmtree(path, ignore_errors=True)  # of a process that was killed here
        trainer.save_pretrained(path)
        told = {"step": step, "success": success, "evaluation": self._evaluation}
        text = json.dumps(told)
        write_atomically(self._file, f"{text}\n".encode())
        for other in self._folder.iterdir():
            if other != path:
                shutil.rmtree(other)
        return True

    def forget_after(self, step: int) -> None:
        """Forget weights of a later step: a run that goes on from `step` makes them again."""
        known = self.found
        if known is not None and known["step"] > step:
            self._file.unlink()

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

"""Tracker `wandb`: Weights & Biases, also without an account (`mode = "offline"`).

Not here: what is tracked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from katgym.errors import MissingDependencyError, UsageError

try:
    import wandb
except ImportError as e:
    raise MissingDependencyError(
        "tracker 'wandb' needs the package 'wandb'. Install: pip install wandb"
    ) from e


class WandbTracker:
    """Sends metrics to a run that has the id of ours, so that continuing continues it."""

    def __init__(
        self,
        folder: Path,
        *,
        project: str = "katgym",
        entity: str | None = None,
        mode: str | None = None,
        tags: list[str] | None = None,
    ) -> None:
        """Keep where to send to.

        entity: user or team; None: the account's own.
        mode: `online`, `offline` (files in the run's folder, for `wandb sync`) or `disabled`; None:
            what WANDB_MODE says, else online, which needs an account.
        """
        self._folder = folder
        self._place = {"project": project, "entity": entity, "mode": mode, "tags": tags}
        self._run: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        """See `Tracker.start`; `UsageError` for an account or a network that is not there."""
        try:
            self._run = wandb.init(
                **self._place,
                id=config["run_id"],
                name=self._folder.name,
                dir=str(self._folder),
                resume="allow",
                config=dict(config),
                settings=wandb.Settings(silent=True),
            )
        except wandb.Error as e:
            raise UsageError(
                f"tracker 'wandb' cannot start: {e}. Hint: mode = \"offline\" needs no account"
            ) from e

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        """See `Tracker.finish`."""
        self._run.finish()

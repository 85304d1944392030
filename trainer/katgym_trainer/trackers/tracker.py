"""Interface of trackers, and those of a run, found by name, ours and plugins' alike.

A tracker's entry point is called with the run's folder and the options of its [[track]] section.
Not here: the trackers (a module each), `metrics.jsonl`, which is always written (`run_folder.py`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from katgym import plugins
from katgym.errors import MissingDependencyError, UnknownNameError, UsageError, unknown_name
from katgym_trainer.config.run_config import TrackConfig


class Tracker(Protocol):
    """Told of a run while it trains."""

    def start(self, config: Mapping[str, Any]) -> None:
        """Begin, or continue.

        config: the run's `lock.json`: `run_id` (the same when the run is continued), `run`,
            `data`, `versions`.
        """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, counted from 1.

        A run that is continued goes on behind its checkpoint: steps that were told and lost are
        told again.
        """

    def finish(self) -> None:
        """Write what is left; called once, also after a failure."""


def make_tracker(config: TrackConfig, folder: Path) -> Tracker:
    """Return a tracker by its name.

    Raises `UnknownNameError` naming the nearest ones, `MissingDependencyError` naming the pip
    command, and `UsageError` for an option that the tracker does not take.
    """
    known = plugins.trackers()
    if config.name not in known:
        raise UnknownNameError(unknown_name("tracker", config.name, known))
    try:
        make = known[config.name].load()
    except MissingDependencyError:
        raise
    except (ImportError, AttributeError) as e:
        plugin = known[config.name].plugin
        raise UsageError(
            f"tracker {config.name!r} of plugin {plugin!r} cannot be loaded: {e}"
        ) from e
    parameters = list(inspect.signature(make).parameters.values())[1:]
    names = [p.name for p in parameters]
    for option in config.options:
        if option not in names and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise UnknownNameError(
                unknown_name(f"option of tracker {config.name!r}", option, names)
            )
    tracker: Tracker = make(folder, **config.options)
    return tracker


@contextlib.contextmanager
def tracking(trackers: Sequence[Tracker], lock: Mapping[str, Any]) -> Iterator[None]:
    """Start trackers, and finish those that started when the block ends, however it does.

    lock: the run's `lock.json`.
    """
    with contextlib.ExitStack() as stack:
        for tracker in trackers:
            tracker.start(lock)
            stack.callback(tracker.finish)
        yield

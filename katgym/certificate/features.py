"""Features of a task by which its answer must not be known: metadata, order, length.

Not here: the regression (`guesser.py`), its judgement (`checks/leaks.py`).
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from katgym.certificate.guesser import Floats
from katgym.certificate.study import StudiedTask

NUM_BUCKETS = 64
PERIODS = (2, 3, 4, 5, 6, 7, 8, 10)


def metadata(example: StudiedTask) -> list[float]:
    """Return hashed words of the task's id (without numbers), of `info` and of message fields."""
    words = re.findall(r"[^\W\d_]+", example.task_id)
    known = {k: v for k, v in example.info.items() if k != "task_id"}
    hidden = [{k: v for k, v in m.items() if k != "content"} for m in example.observation]
    for name, value in (("info", known), ("fields", hidden)):
        text = json.dumps(value, sort_keys=True, default=str)
        words += [f"{name}:{word}" for word in re.findall(r"\w+", text)]
    row = [0.0] * NUM_BUCKETS
    for word in words:
        row[zlib.crc32(word.encode()) % NUM_BUCKETS] += 1.0
    return row


def order(example: StudiedTask) -> list[float]:
    """Return the task's place in its split, and that place modulo small numbers."""
    digits = re.findall(r"[0-9]{1,9}", example.task_id)
    places = [example.index, int(digits[-1]) if digits else 0]
    row = [example.index / example.num_tasks]
    for place in places:
        row += [float(place % period == k) for period in PERIODS for k in range(period)]
    return row


def length(example: StudiedTask) -> list[float]:
    """Return how long the opening is, and how much of it nobody reads."""
    text = example.prompt
    bare = " ".join(text.split())
    unseen = sum(not c.isprintable() for c in text)
    lines = text.split("\n")
    trailing = sum(len(line) - len(line.rstrip()) for line in lines)
    sizes = [len(text), len(text) - len(bare), unseen, len(lines), trailing]
    return [*map(float, sizes), math.log1p(len(bare))]


FEATURES: Mapping[str, Callable[[StudiedTask], list[float]]] = {
    "metadata": metadata,
    "order": order,
    "length": length,
}


def table(examples: Sequence[StudiedTask], *names: str) -> Floats:
    """Return the features of the named groups, a row an example."""
    rows = [[x for name in names for x in FEATURES[name](example)] for example in examples]
    return np.array(rows, dtype=np.float64)

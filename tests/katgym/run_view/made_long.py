"""Groups of long rollouts: many turns with output of a few kilobytes, errors now and then."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import msgspec
from made_hunts import Encode, Episode, plain_end

from katgym import Rollout, ToolErrorKind, Turn, user

WORDS = [
    "the", "test", "fails", "in", "this", "module", "because", "a", "name", "is", "read", "before",
    "it", "is", "bound", "here",
]  # fmt: skip


def made_long_rollout(
    encode: Encode, *, num_turns: int, attempt: int = 0, seed: int = 0
) -> Rollout:
    """Return a rollout whose turns read files and run tests; every 37th turn has an error."""
    rng = random.Random(seed)
    episode = Episode(encode, rng, 0)
    episode.tell({"role": "system", "content": "You mend programs."}, user("Mend this one."))
    for number in range(1, num_turns + 1):
        thought = " ".join(rng.choice(WORDS) for _ in range(30))
        text = "\n".join(" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(25))
        error = ToolErrorKind.TOOL_ERROR if number % 37 == 0 else None
        results = [(text, error, 0.02, 0), (f"{number} passed", None, 0.3, 0)]
        calls = [("read_file", {"path": f"src/part_{number}.py"}), ("run_tests", {"last": number})]
        episode.answer(f"{thought}, step {number}.", calls, results)
    return plain_end(episode, task=7, attempt=attempt)


def equal_rollouts(made: Rollout, num: int) -> list[Rollout]:
    """Return siblings that said and were told the same, each at its own times."""
    return [
        dataclasses.replace(
            made,
            attempt=attempt,
            episode_id=f"{made.episode_id}-{attempt}",
            turns=_at_other_times(made.turns, random.Random(attempt)),
        )
        for attempt in range(num)
    ]


def _at_other_times(turns: Sequence[Turn], rng: random.Random) -> list[Turn]:
    return [
        msgspec.structs.replace(
            turn,
            completed_s=turn.completed_s + rng.random() / 10,
            tool_results=[
                msgspec.structs.replace(result, ended_s=result.ended_s + rng.random() / 10)
                for result in turn.tool_results
            ],
        )
        for turn in turns
    ]

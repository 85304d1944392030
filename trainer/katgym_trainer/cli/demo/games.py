"""Games of the training demo, and who plays them for the model to imitate.

Not here: teaching them (`training_demo.py`), the keys of the runs (`sft.toml`, `rl.toml`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """What a model learns."""

    name: str
    env: str
    """What it is tested on, in as many turns as the env gives and in three."""
    teachers: tuple[tuple[str, str, str, int, int], ...]
    """Folder, env, who plays, rollouts, and the seed of their tasks."""
    rl: tuple[str, ...] = ()
    """Keys of `rl.toml` that are replaced."""


ARITHMETIC, HUNT = "katgym/Arithmetic-v1", "katgym/TreasureHunt-v1"
TIGHT = "max_turns=3"
GAMES = (
    Game(
        name="expressions",
        env=f"{ARITHMETIC}?level=7",
        teachers=(
            ("level-1", f"{ARITHMETIC}?level=1", "oracle", 1000, 0),
            ("level-2", f"{ARITHMETIC}?level=2", "oracle", 1000, 0),
            ("level-7-one-by-one", f"{ARITHMETIC}?level=7", "oracle?max_calls=1", 2400, 0),
            ("level-7-parallel", f"{ARITHMETIC}?level=7", "oracle", 600, 1),
        ),
    ),
    Game(
        name="hunts",
        env=f"{HUNT}?level=1",
        teachers=(
            ("one-by-one", f"{HUNT}?level=1", "oracle?max_calls=1", 2000, 0),
            ("parallel", f"{HUNT}?level=1", "oracle", 500, 1),
        ),
        rl=(
            f'envs=[{{id="{HUNT}?level=1&{TIGHT}", num_tasks=1024}}]',
            "train.num_steps=8",
            "evaluate.every_steps=8",
        ),
    ),
)

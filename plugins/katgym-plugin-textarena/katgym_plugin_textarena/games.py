"""The games: how each is made, won and solved. Not here: what a move does (`env.py`)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib import import_module
from operator import xor
from types import SimpleNamespace
from typing import Any

Game = Any
"""One of upstream's envs, in the state of an episode."""


@dataclass(frozen=True)
class Rules:
    """A game for this plugin.

    goal: what the player has to do.
    levels: level -> arguments of `make`; the first is the default.
    is_won: whether the first player has won; asked when the game is over.
    solve: the moves to a win from here, of which the first is made; they may use what is hidden.
        With an opponent: all moves that win against every answer. Empty if there is no win.
    move: a move of the right form by a generator; with an opponent a legal one.
    make: None is upstream's class.
    is_open: whether the first text tells one game from another: no two splits then share it.
    num_opening: moves made at random before the first; None for a game without an opponent.
    """

    goal: str
    levels: Mapping[str, Mapping[str, int]]
    is_won: Callable[[Game], bool]
    solve: Callable[[Game], list[str]]
    move: Callable[[Game, Any], str]
    make: Callable[..., Game] | None = None
    is_open: bool = True
    num_opening: int | None = None


def upstream(name: str) -> Any:
    """Return upstream's class of a game."""
    return getattr(import_module(f"textarena.envs.{name}.env"), f"{name}Env")


def _brackets(*parts: object) -> str:
    return f"[{' '.join(map(str, parts))}]"


def fill(game: Game) -> list[str]:
    board, full = game.state.game_state["board"], game.full_grid
    free = [(i, j) for i in range(9) for j in range(9) if not board[i][j]]
    return [_brackets(i + 1, j + 1, full[i][j]) for i, j in free]


def press(game: Game) -> list[str]:
    """Return the fewest presses: those of the first row decide which put out the row above."""
    size, found = game.size, []
    for first in itertools.product((0, 1), repeat=size):
        grid, pressed = [[int(on) for on in row] for row in game.state.game_state["grid"]], []
        for row, column in itertools.product(range(size), repeat=2):
            if (first, *grid)[row][column]:
                game._toggle_lights(grid, row, column)
                pressed.append(_brackets(row, column))
        if not any(itertools.chain(*grid)):
            found.append(pressed)
    return min(found, key=len, default=[])


def make_countdown() -> Game:
    """Return a game whose number was made from the others; `plan` is how."""
    while True:
        game = upstream("Countdown")(target=0)
        game.numbers, game.expressions, game.plan = [*game.orig_numbers], [""] * 6, []
        while len(game.numbers) > 1:
            first, second, sign = _pick(game, random)
            result = game._execute_operation(first, second, sign)
            if result is not None and result > 0:
                game._update_state(first, second, sign, result)
                game.plan.append(_brackets(first, second, sign))
        game.target = game.numbers[0]
        if 100 <= game.target <= 999:
            return game


def _pick(game: Game, rng: Any) -> tuple[int, int, str]:
    return (*rng.sample(range(len(game.numbers)), 2), rng.choice("+-*/"))


def cross(game: Game) -> list[str]:
    """Return the fewest steps to the goal."""
    state, size = game.state.game_state, range(game.size)
    paths: dict[Any, list[str]] = {state["player_pos"]: []}
    for row, column in (queue := [*paths]):
        for name, (down, right) in game.actions.items():
            i, j = row + down, column + right
            if i in size and j in size and (i, j) not in paths and state["grid"][i][j] != "H":
                paths[i, j] = [*paths[row, column], f"[{name}]"]
                queue.append((i, j))
    return paths.get(state["goal_pos"], [])


def take_to_zero(game: Game) -> list[str]:
    """Return the moves after which the piles' exclusive or is 0."""
    piles = game.state.game_state["piles"]
    total = reduce(xor, piles)
    return [_brackets(i, n - (n ^ total)) for i, n in enumerate(piles) if n ^ total < n]


def take(game: Game, rng: Any) -> str:
    piles = game.state.game_state["piles"]
    return _brackets(*rng.choice([(i, k + 1) for i, n in enumerate(piles) for k in range(n)]))


def connect(game: Game) -> list[str]:
    """Return the cells by which the player to move wins, whatever is answered."""
    cells, player = (
        [*itertools.chain(*game.state.game_state["board"])],
        game.state.current_player_id,
    )
    return [_brackets(i) for i in _free(game) if _wins(_put(cells, i, player), player)]


def _put(cells: Sequence[str], cell: int, player: int) -> tuple[str, ...]:
    return (*cells[:cell], "OX"[player], *cells[cell + 1 :])


@lru_cache(maxsize=100_000)
def _wins(cells: tuple[str, ...], player: int) -> bool:
    """Return whether the last stone, of `player`, wins; for X a full board is a win, too."""
    game = upstream("SimpleTak")(4)
    game.state = SimpleNamespace(game_state={"board": [cells[i : i + 4] for i in (0, 4, 8, 12)]})
    answers = (_wins(_put(cells, i, 1 - player), 1 - player) for i in _free(game))
    is_draw_of_first = all(cells) and player == 0
    return bool(game._check_win("OX"[player]) or not (is_draw_of_first or any(answers)))


def _free(game: Game) -> list[int]:
    cells = itertools.chain(*game.state.game_state["board"])
    return [i for i, stone in enumerate(cells) if not stone]


RULES = {
    "Sudoku": Rules(  # with fewer clues several solutions fit, of which upstream takes its own
        "fill a grid of nine by nine, one digit a turn",
        {"easy": {"clues": 70}, "very-easy": {"clues": 75}, "normal": {"clues": 60}},
        lambda game: game.state.game_state["board"] == game.full_grid,
        fill,
        lambda game, rng: f"{rng.choice(fill(game))[:5]}{rng.randint(1, 9)}]",
    ),
    "LightsOut": Rules(
        "turn all lights off, each press turning its neighbours, too",
        {"normal": {"size": 5, "max_turns": 20}},
        lambda game: not any(itertools.chain(*game.state.game_state["grid"])),
        press,
        lambda game, rng: _brackets(rng.randrange(5), rng.randrange(5)),
    ),
    "Mastermind": Rules(
        "find a code from the pegs that guesses earn",
        {"extreme": {"code_length": 6, "num_numbers": 12, "max_turns": 50, "duplicate_numbers": 1}},
        lambda game: any(entry["black"] == 6 for entry in game.state.game_state["history"]),
        lambda game: [_brackets(*game.state.game_state["secret_code"])],
        lambda game, rng: _brackets(*rng.sample(range(1, 13), k=6)),
        is_open=False,
    ),
    "Countdown": Rules(
        "reach a number from six others, two of them a turn",
        {"normal": {}},
        lambda game: game.numbers[-1] == game.target,
        lambda game: game.plan[1 - len(game.numbers) :],
        lambda game, rng: _brackets(*_pick(game, rng)),
        make_countdown,
    ),
    "FrozenLake": Rules(
        "walk over ice without falling into a hole",
        {"normal": {"size": 8, "num_holes": 20}},
        lambda game: game.state.game_state["player_pos"] == game.state.game_state["goal_pos"],
        cross,
        lambda game, rng: _brackets(rng.choice([*game.actions])),
    ),
    "Nim": Rules(
        "take the last object from piles, against a player that makes no mistake",
        {"normal": {"piles": 4, "most": 15}, "easy": {"piles": 3, "most": 7}},
        lambda game: game.state.current_player_id == 0 and not any(game.state.game_state["piles"]),
        take_to_zero,
        take,
        lambda piles, most: upstream("Nim")([random.randint(1, most) for _ in range(piles)]),
        num_opening=0,
    ),
    "SimpleTak": Rules(
        "connect two sides of a board, against a player that makes no mistake",
        {"normal": {"board_size": 4}},
        lambda game: game._check_win("O"),
        connect,
        lambda game, rng: _brackets(rng.choice(_free(game))),
        num_opening=8,
    ),
}

"""Players for OpenSpiel games: random, tree search, exact play of small games.

Not here: the games (`catalogue.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import numpy as np
import pyspiel
from open_spiel.python.algorithms import ismcts, mcts

from katgym.errors import UsageError
from katgym_envs.games.openspiel.catalogue import RESAMPLING_GAMES, load_game

EXACT_GAMES = frozenset({"catch", "cliff_walking", "deep_sea", "nim", "tic_tac_toe"})
"""Small enough for the oracle to look at every position."""
_MEMORY_MB = 128
_UCT_C = 2.0
_WORK = 1_000_000
"""Legal actions the oracle may look at in one move's playouts, roughly."""


class Player(Protocol):
    """Something that chooses actions; it keeps a random stream, so one per episode."""

    def choose(self, state: pyspiel.State) -> int:
        """Return a legal action of a decision state, which is left as it was."""
        ...


class RandomPlayer:
    """Plays any legal action with equal probability."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def choose(self, state: pyspiel.State) -> int:
        return int(self._rng.choice(state.legal_actions()))


class BotPlayer:
    """Plays what OpenSpiel's bots play: a new one for each move, as none can be copied.

    make_bot: a function of the move's seed.
    """

    def __init__(self, make_bot: Callable[[int], pyspiel.Bot], seed: int) -> None:
        self._make_bot = make_bot
        self._rng = random.Random(seed)

    def choose(self, state: pyspiel.State) -> int:
        return int(self._make_bot(self._rng.getrandbits(31)).step(state))


class RolloutPlayer:
    """Plays the action with the best average return over random playouts.

    For games that pay along the way, which OpenSpiel's tree search does not take.
    """

    def __init__(self, num_rollouts: int, seed: int) -> None:
        self.num_rollouts = num_rollouts
        self._rng = random.Random(seed)

    def choose(self, state: pyspiel.State) -> int:
        player, actions = state.current_player(), state.legal_actions()
        if len(actions) == 1:
            return int(actions[0])
        each = max(1, self.num_rollouts // len(actions))
        totals = {
            action: sum(self._playout(state.child(action), player) for _ in range(each))
            for action in actions
        }
        return int(max(actions, key=lambda action: totals[action]))

    def _playout(self, state: pyspiel.State, player: int) -> float:
        while not state.is_terminal():
            state.apply_action(draw_action(state, self._rng))
        return float(state.returns()[player])


class ExactPlayer:
    """Plays an action of the highest expected return against best play, by looking at everything.

    Positions are told apart by `str(state)` and the move number; their values are kept.
    """

    def __init__(self) -> None:
        self._to_go: dict[tuple[int, str], tuple[float, ...]] = {}

    def choose(self, state: pyspiel.State) -> int:
        player = state.current_player()
        return int(max(state.legal_actions(), key=lambda a: self._total(state.child(a))[player]))

    def __deepcopy__(self, memo: dict[int, object]) -> ExactPlayer:
        return self  # what it keeps is true of the game, whoever plays

    def value(self, state: pyspiel.State) -> tuple[float, ...]:
        """Return each player's expected return from here on, rewards so far left out."""
        key = (state.move_number(), str(state))
        if key not in self._to_go:
            if state.is_chance_node():
                outcomes = [(p, self._total(state.child(a))) for a, p in state.chance_outcomes()]
                players = range(state.num_players())
                totals = tuple(sum(p * total[i] for p, total in outcomes) for i in players)
            else:
                player = state.current_player()
                children = (self._total(state.child(action)) for action in state.legal_actions())
                totals = max(children, key=lambda total: total[player])
            now = state.returns()
            self._to_go[key] = tuple(t - n for t, n in zip(totals, now, strict=True))
        return self._to_go[key]

    def _total(self, state: pyspiel.State) -> tuple[float, ...]:
        if state.is_terminal():
            return tuple(state.returns())
        return tuple(v + n for v, n in zip(self.value(state), state.returns(), strict=True))


@cache
def exact_player(game_text: str) -> ExactPlayer:
    """Return the process's exact player of this game; its values are shared by episodes."""
    return ExactPlayer()


def check_search(game: pyspiel.Game) -> None:
    """Raise `UsageError` when an honest tree search cannot play this game."""
    kind = game.get_type()
    is_perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    hint = "use opponent='random' or opponent='self'"
    if not is_perfect and kind.short_name not in RESAMPLING_GAMES:
        raise UsageError(
            f"opponent='mcts' cannot play {kind.short_name!r}: it has hidden information that"
            f" OpenSpiel cannot resample, so the search would have to peek; {hint}"
        )
    if kind.reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        raise UsageError(
            f"opponent='mcts' cannot play {kind.short_name!r}: it pays along the way; {hint}"
        )


def search_player(game: pyspiel.Game, simulations: int, seed: int) -> Player:
    """Return a tree search that knows only what the player on move knows."""
    check_search(game)
    if game.get_type().information == pyspiel.GameType.Information.PERFECT_INFORMATION:
        return BotPlayer(partial(_mcts, game, simulations), seed)
    return BotPlayer(partial(_ismcts, game, simulations), seed)


def oracle_player(game_text: str, seed: int) -> Player:
    """Return the strongest player there is; it sees everything, hidden information too."""
    game = load_game(game_text)
    kind = game.get_type()
    if kind.short_name in EXACT_GAMES and "(" not in game_text:
        return exact_player(game_text)
    simulations = oracle_simulations(game)
    if kind.reward_model == pyspiel.GameType.RewardModel.TERMINAL:
        return BotPlayer(partial(_mcts, game, simulations), seed)
    return RolloutPlayer(min(simulations, 100), seed)


def oracle_simulations(game: pyspiel.Game) -> int:
    """Return 50 to 2000 simulations, fewer the more actions one random playout looks at."""
    state, rng, num_looked_at = game.new_initial_state(), random.Random(0), 1
    while not state.is_terminal():
        num_looked_at += 1 if state.is_chance_node() else len(state.legal_actions())
        state.apply_action(draw_action(state, rng))
    return min(2000, max(50, _WORK // num_looked_at))


def draw_action(state: pyspiel.State, rng: random.Random) -> int:
    """Draw a legal action, or a chance outcome by its probability."""
    if not state.is_chance_node():
        return int(rng.choice(state.legal_actions()))
    actions, probabilities = zip(*state.chance_outcomes(), strict=True)
    return int(rng.choices(actions, weights=probabilities)[0])


def _mcts(game: pyspiel.Game, simulations: int, seed: int) -> pyspiel.Bot:
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    return pyspiel.MCTSBot(game, evaluator, _UCT_C, simulations, _MEMORY_MB, True, seed, False)


def _ismcts(game: pyspiel.Game, simulations: int, seed: int) -> pyspiel.Bot:
    # OpenSpiel's search in Python: ties in the C++ one hang on the process's hash seed.
    random_state, rng = np.random.RandomState(seed), random.Random(seed)
    bot = ismcts.ISMCTSBot(
        game,
        mcts.RandomRolloutEvaluator(1, random_state),
        uct_c=_UCT_C,
        max_simulations=simulations,
        random_state=random_state,
    )
    bot.set_resampler(lambda state, player: state.resample_from_infostate(player, rng.random))
    return bot

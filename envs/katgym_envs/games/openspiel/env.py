"""`katgym/OpenSpiel-v0`: one seat, or both, of an OpenSpiel game, with moves as text.

Not here: which games (`catalogue.py`), who plays against the policy (`search.py`), what a player
sees (`view.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyspiel

import katgym
from katgym.environment.env import StepResult
from katgym.environment.messages import Action, Message
from katgym.environment.reward import Headline
from katgym.errors import UsageError, check_name
from katgym_envs.games.moves import MoveEnv, list_moves, match_move
from katgym_envs.games.openspiel.catalogue import PROBING_GAMES, load_game
from katgym_envs.games.openspiel.rules import RULES
from katgym_envs.games.openspiel.search import (
    EXACT_GAMES,
    Player,
    RandomPlayer,
    check_search,
    exact_player,
    oracle_player,
    search_player,
)
from katgym_envs.games.openspiel.view import (
    action_text,
    action_texts,
    find_forced_pass,
    is_perfect_information,
    state_text,
)

OPPONENTS = ("random", "mcts", "self")
DEFAULT_SIMULATIONS = 100
MAX_DEFAULT_TURNS = 1000

OPENING = """\
You play {name}. {rules}
{seat}
Make a move with play(move), or answer with the move alone on the last line. legal_actions() lists \
the legal moves. {illegal}"""


class OpenSpielEnv(MoveEnv):
    """A game of OpenSpiel; see the folder's README.

    With `opponent="self"` there are two seats. Each step plays for `seat`, the player on move, and
    returns what the *next* player on move has not seen yet: its opening, the answers to its own
    tool calls, the moves since. The step's reward is that of the first seat; `seat_rewards` has
    all.
    """

    success = katgym.Success(component="win", headline=Headline.MEAN_REWARD)

    def __init__(
        self,
        *,
        game: str = "tic_tac_toe",
        opponent: str = "random",
        simulations: int | None = None,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Load the game.

        game: an OpenSpiel short name, parameters allowed: `"mnk(m=5,n=5,k=4)"`.
        opponent: `"random"`, `"mcts"`, or `"self"` (both seats are policies). A single-player game
            has none and takes the default only.
        simulations: of the mcts opponent, per move; None for 100.
        max_turns: None for the game's longest course, but at most 1000.
        """
        self.game = load_game(game)
        self.game_text = game
        check_name("opponent", opponent, OPPONENTS)
        if self.game.num_players() == 1 and opponent != "random":
            name = self.game.get_type().short_name
            raise UsageError(f"opponent={opponent!r}: {name!r} is played alone, leave it out")
        if simulations is not None:
            if opponent != "mcts":
                raise UsageError(f"simulations={simulations!r} is for opponent='mcts' only")
            if isinstance(simulations, bool) or not isinstance(simulations, int) or simulations < 1:
                raise UsageError(f"simulations is an int >= 1, got {simulations!r}")
        if opponent == "mcts":
            check_search(self.game)
        self.opponent = opponent
        self.simulations = DEFAULT_SIMULATIONS if simulations is None else simulations
        self.is_self_play = opponent == "self"
        if self.is_self_play:
            self.seats = ("player_0", "player_1")
        self.player = 0
        self._state = self.game.new_initial_state()
        longest = min(self.game.max_game_length() + 20, MAX_DEFAULT_TURNS)
        super().__init__(max_turns=longest if max_turns is None else max_turns, **kwargs)

    # ---- the episode

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make(rng: np.random.Generator, index: int) -> katgym.Task:
            drawn = int(rng.integers(self.game.num_players()))
            player = 0 if self.is_self_play else drawn
            data = {"game": self.game_text, "player": player, "seed": int(rng.integers(2**32))}
            return katgym.Task(task_id="", data=data)

        name = self.game.get_type().short_name
        return katgym.ProceduralTaskSet(make, split=split, prefix=f"{name}-")

    async def setup(self) -> None:
        self.begin_game()
        self.player = int(self.task.data["player"])
        seeds = [int(self.task.data["seed"]), int(self.np_random.integers(2**63))]
        self._chance = np.random.default_rng(seeds)
        seed = int(self.np_random.integers(2**31))
        is_search = self.opponent == "mcts"
        self._opponent: Player = (
            search_player(self.game, self.simulations, seed) if is_search else RandomPlayer(seed)
        )
        self._oracle: Player | None = None
        self._state = self.game.new_initial_state()
        self._news: tuple[list[str], ...] = tuple([] for _ in range(self.game.num_players()))
        self._inbox: dict[str, list[Message]] = {seat: [] for seat in self.seats}
        self._greeted: set[str] = set()
        self._is_new_turn = False
        await self._advance()

    async def _advance(self) -> None:
        """Play chance, forced passes and the opponent until the policy is on move, or the end."""
        state = self._state
        while not state.is_terminal():
            player = state.current_player()
            if state.is_chance_node():
                actions, probabilities = zip(*state.chance_outcomes(), strict=True)
                weights = np.asarray(probabilities) / sum(probabilities)
                state.apply_action(actions[int(self._chance.choice(len(actions), p=weights))])
            elif (forced := find_forced_pass(state)) is not None:
                self._apply(forced, note="You had to pass.")
            elif self.is_self_play or player == self.player:
                self.player = player
                self.seat = self.seats[player if self.is_self_play else 0]
                return
            else:
                self._apply(await asyncio.to_thread(self._opponent.choose, state.clone()))
        self.finish("game_over")

    def _apply(self, action: int, *, note: str = "") -> bool:
        """Play an action; the other player hears of it if nothing in the game is hidden.

        Returns whether it counted: False for a probe that ran into what its player cannot see.
        """
        mover = self._state.current_player()
        can_fail = self.game.get_type().short_name in PROBING_GAMES
        before = str(self._state) if can_fail else ""
        text = action_text(self._state, action)
        self._state.apply_action(action)
        if note:
            self._news[mover].append(note)
        if is_perfect_information(self.game):
            for player, news in enumerate(self._news):
                if player != mover:
                    news.append(f"Player {mover} played {text}.")
        has_moved = self._state.current_player() != mover
        return not can_fail or (has_moved and str(self._state) != before)

    async def make_move(self, text: str) -> str:
        actions = action_texts(self._state)
        move = match_move(text, actions)
        mover = self.player
        shown = f"You played {move}."
        if not self._apply(actions[move]):
            has_turn = self._state.current_player() == mover
            shown = (
                f"You tried {move}, which failed: what you cannot see does not allow it. Nothing"
                f" moved; {'it is still your turn.' if has_turn else 'your turn is over.'}"
            )
        self._is_new_turn = True
        await self._advance()
        if not self._state.is_terminal():
            return shown if self.is_self_play else f"{shown} {self._view(mover)}"
        own = self._state.returns()[mover]
        low, high = self.game.min_utility(), self.game.max_utility()
        verdict = ""
        if self._is_constant_sum and self.game.num_players() == 2:
            verdict = "You won. " if own > 0 else "You lost. " if own < 0 else "It is a draw. "
        return (
            f"{shown} {self._take_news(mover)}The game is over. {verdict}"
            f"Your return is {own:g} (possible: {low:g} to {high:g})."
            f" The final position:\n{state_text(self._state, mover)}"
        )

    # ---- what a seat sees

    def opening(self) -> str:
        self._greeted.add(self.seat)
        name = self.game.get_type().long_name
        rules = RULES[self.game.get_type().short_name]
        if self.game_text != self.game.get_type().short_name:
            rules += f" These rules describe the default game; this one is {self.game_text}."
        seat = f"You are player {self.player}; the other is player {1 - self.player}."
        if self.game.num_players() == 1:
            seat = "You play alone."
        illegal = f"After {self.max_retries + 1} illegal moves in a row you lose."
        if self.max_retries == 0:
            illegal = "An illegal move loses at once."
        text = OPENING.format(name=name, rules=rules, seat=seat, illegal=illegal)
        return f"{text}\n\n{self._view(self.player)}"

    def _view(self, player: int) -> str:
        """Return what `player`, who is on move, sees, with the news since its last look."""
        state = state_text(self._state, player)
        return f"{self._take_news(player)}Your view:\n{state}\n{self.legal_moves_text()}"

    def _take_news(self, player: int) -> str:
        news = " ".join(self._news[player])
        self._news[player].clear()
        return f"{news} " if news else ""

    def legal_moves_text(self) -> str:
        return list_moves(list(action_texts(self._state)), tool_name="legal_actions")

    @katgym.tool(parallel=True)
    async def legal_actions(self) -> str:
        """List all legal moves of the position."""
        self.check_may_move()
        return " | ".join(action_texts(self._state))

    async def astep(self, action: Action) -> StepResult:
        actor = self.seat
        observation, reward, terminated, truncated, info = await super().astep(action)
        if self.is_self_play:
            # Keep what is for the actor, and hand on what is for the seat on move.
            self._inbox[actor] += observation
            if self._is_new_turn and not (terminated or truncated):
                is_greeted = self.seat in self._greeted
                message = katgym.user(self._view(self.player) if is_greeted else self.opening())
                self._inbox[self.seat].append(message)
                self.messages.append(message)
            self._is_new_turn = False
            observation = self._inbox[self.seat]
            self._inbox[self.seat] = []
        return observation, reward, terminated, truncated, info

    # ---- reward

    def _score(self, player: int) -> float:
        """Return a player's return mapped to 0..1; 0 for an unfinished game."""
        if self.is_forfeit:
            is_winner = self.is_self_play and player != self.player and self._is_constant_sum
            return float(is_winner)
        if not self._state.is_terminal():
            return 0.0
        low, high = self.game.min_utility(), self.game.max_utility()
        return float(min(1.0, max(0.0, (self._state.returns()[player] - low) / (high - low))))

    @property
    def _is_constant_sum(self) -> bool:
        kinds = pyspiel.GameType.Utility
        return self.game.get_type().utility in (kinds.ZERO_SUM, kinds.CONSTANT_SUM)

    def _is_win(self, player: int) -> bool:
        """Return whether a player got more than the other, or all there is to get."""
        if self.is_forfeit or not self._state.is_terminal():
            return self._score(player) == 1.0
        returns = self._state.returns()
        return bool(
            any(returns[player] > other for i, other in enumerate(returns) if i != player)
            or returns[player] >= self.game.max_utility()
        )

    def _find_scored_player(self) -> int:
        return 0 if self.is_self_play else self.player

    @katgym.scorer()
    def outcome(self) -> float:
        """The policy's return, mapped linearly from the game's least and greatest to 0..1."""
        return self._score(self._find_scored_player())

    @katgym.scorer(weight=0.0)
    def win(self) -> bool:
        """Whether the policy got more than the opponent, or all there is to get."""
        return self._is_win(self._find_scored_player())

    @katgym.scorer(weight=0.0)
    def illegal_moves(self) -> int:
        """Illegal moves tried, of all seats."""
        return self.num_illegal_moves

    def seat_rewards(self) -> Mapping[str, katgym.Reward]:
        """Return every seat's reward; the last step's counts for the first seat only.

        In mid-game values are 0.0, and component `return` is what the seat has been paid so far.
        """
        first = self.last_reward
        if first is None and self.is_running:
            paid = self._state.returns()
            players = range(2) if self.is_self_play else (self.player,)
            so_far = [katgym.Component(score=paid[player], weight=0.0) for player in players]
            return {
                seat: katgym.Reward(value=0.0, components={"return": part})
                for seat, part in zip(self.seats, so_far, strict=True)
            }
        if not self.is_self_play or first is None or not first.is_valid:
            return super().seat_rewards()
        rewards = {}
        for player, seat in enumerate(self.seats):
            components = {
                **first.components,
                "outcome": katgym.Component(score=self._score(player)),
                "win": katgym.Component(score=float(self._is_win(player)), weight=0.0),
            }
            rewards[seat] = katgym.Reward(
                value=self._score(player),
                components=components,
                failure_kind=first.failure_kind,
                reason=first.reason,
            )
        return rewards

    # ---- built-in policies

    def oracle_minimum(self) -> float | None:
        """Return the share of the game's value, where that is proven; else the least there is.

        Chance and an opponent's luck can cost more than the value of a game with chance nodes.
        """
        lowest, highest = self.game.min_utility(), self.game.max_utility()
        kind = self.game.get_type()
        is_proven = kind.short_name in EXACT_GAMES and self.game_text == kind.short_name
        if not is_proven or kind.chance_mode != pyspiel.GameType.ChanceMode.DETERMINISTIC:
            return 0.0
        values = exact_player(self.game_text).value(self.game.new_initial_state())
        return float((min(values) - lowest) / (highest - lowest))

    def oracle_action(self) -> Action:
        """Play exactly in the smallest games, else by a long search that sees everything."""
        if self._oracle is None:
            self._oracle = oracle_player(self.game_text, seed=0)
        action = self._oracle.choose(self._state.clone())
        text = next(text for text, a in action_texts(self._state).items() if a == action)
        return self.move_action(text)

    def random_action(self, rng: random.Random) -> Action:
        """Play any legal move."""
        return self.move_action(rng.choice(list(action_texts(self._state))))

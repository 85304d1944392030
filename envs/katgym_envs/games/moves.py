"""Parts that the turn-based games share: moves by tool or by text, and what an illegal one costs.

Not here: any game's rules (`openspiel/`, `chess_game/`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import katgym
from katgym.environment.messages import Action, Message
from katgym.environment.scheduler import ToolResult
from katgym.errors import ToolError, UnknownNameError, UsageError, unknown_name

ILLEGAL_MOVE_POLICIES = ("retry", "loss")
MAX_LISTED = 24
"""Moves written out in a message; `legal_actions` or `legal_moves` gives all of them."""


class IllegalMoveError(ToolError):
    """The text names no legal move of the current position; its message says why."""


class MoveEnv(katgym.Env):
    """An env whose only act is one move per turn.

    A move is made with the tool `play`, or as plain text: the last line of a message without tool
    calls. A message without a move (also an empty one) counts as an illegal move.
    """

    def __init__(self, *, illegal_move: str = "retry", max_retries: int = 2, **kwargs: Any) -> None:
        """Check the options.

        illegal_move: `"loss"` ends the game at the first illegal move; `"retry"` lets the policy
            try again `max_retries` times in a row (a legal move resets the count), then it loses.
        """
        super().__init__(**kwargs)
        if illegal_move not in ILLEGAL_MOVE_POLICIES:
            raise UnknownNameError(
                unknown_name("illegal_move", illegal_move, ILLEGAL_MOVE_POLICIES)
            )
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
            raise UsageError(f"max_retries is an int >= 0, got {max_retries!r}")
        self.illegal_move = illegal_move
        self.max_retries = max_retries if illegal_move == "retry" else 0
        self.begin_game()

    def begin_game(self) -> None:
        """Forget the last game's moves; for `setup`."""
        self.num_illegal_moves = 0
        self.is_forfeit = False
        self._num_retries = 0
        self._has_moved = False

    @abc.abstractmethod
    async def make_move(self, text: str) -> str:
        """Play the move that `text` names and return what the player sees afterwards.

        Raises `IllegalMoveError` before anything has changed.
        """

    @abc.abstractmethod
    def legal_moves_text(self) -> str:
        """Return the legal moves in short, for the answer to an illegal one."""

    @katgym.tool(timeout_s=300)
    async def play(self, move: str) -> str:
        """Play your move. One move per turn.

        Args:
            move: The move, written as in the list of legal moves.
        """
        self.check_may_move()
        return await self._try_move(move)

    async def reply(self, message: Message) -> Sequence[Message]:
        """Take the last line of the message as the move."""
        try:
            text = await self._try_move(last_line(message["content"]))
        except IllegalMoveError as e:
            text = str(e)
        self._has_moved = False
        return [katgym.user(text)]

    async def after_tools(self, results: Sequence[ToolResult]) -> Sequence[Message]:
        """Allow the next turn its move."""
        self._has_moved = False
        return ()

    def check_may_move(self) -> None:
        """Raise `ToolError` when this turn's move was made or the game is over."""
        if self._is_terminated:
            raise ToolError("The game is over.")
        if self._has_moved:
            raise ToolError("You have already moved in this turn: one move per turn.")

    async def _try_move(self, text: str) -> str:
        try:
            shown = await self.make_move(text)
        except IllegalMoveError as e:
            # An illegal move is counted; it ends the game, or is the call's error.
            self.num_illegal_moves += 1
            if self._num_retries >= self.max_retries:
                self.is_forfeit = True
                self.finish("illegal_move")
                return f"{e}\nThat was an illegal move: you lose the game."
            self._num_retries += 1
            left = self.max_retries - self._num_retries + 1
            tries = "1 try" if left == 1 else f"{left} tries"
            raise IllegalMoveError(
                f"{e}\n{self.legal_moves_text()}\nTry again: {tries} left before you lose."
            ) from e
        self._num_retries = 0
        self._has_moved = True
        return shown

    def move_action(self, move: str) -> Action:
        """Return the action that plays `move` by tool."""
        return katgym.assistant("", [("play", {"move": move})])


def last_line(text: str) -> str:
    """Return the last line that is not blank, stripped; "" if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def match_move(text: str, moves: Iterable[str]) -> str:
    """Return the one of `moves` that `text` names; raises `IllegalMoveError`.

    Exact text wins. Otherwise case, spaces, quotes, a final full stop and a leading `move:` do not
    matter, as long as one move fits.
    """
    known: Mapping[str, str] = {move.strip(): move for move in moves}
    stripped = text.strip()
    if not stripped:
        raise IllegalMoveError("Your message holds no move.")
    if stripped in known:
        return known[stripped]
    wanted = _loose(stripped)
    near = [move for move in known.values() if _loose(move) == wanted]
    if len(near) == 1:
        return near[0]
    if near:
        listed = ", ".join(repr(move) for move in near)
        raise IllegalMoveError(f"{stripped[:80]!r} fits several moves: {listed}.")
    raise IllegalMoveError(f"{stripped[:80]!r} is not a legal move.")


def list_moves(moves: Sequence[str], *, tool_name: str) -> str:
    """Return one line with the legal moves, cut at `MAX_LISTED`.

    Example:
        >>> list_moves(["Pass", "Bet"], tool_name="legal_actions")
        'Legal moves (2): Pass | Bet'
    """
    shown = " | ".join(move.strip() for move in moves[:MAX_LISTED])
    if len(moves) > MAX_LISTED:
        shown += f" | ... (call {tool_name} for all of them)"
    return f"Legal moves ({len(moves)}): {shown}"


def _loose(text: str) -> str:
    text = text.strip().strip("`'\"*").strip()
    if text[:5].casefold() == "move:":
        text = text[5:]
    return "".join(text.split()).strip("`'\"*").rstrip(".;").casefold()

"""Chess puzzles are proven, any mating line is accepted, games follow the rules."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import pytest
from data_proof import prove
from env_play import finish, play

import katgym
from chess_puzzles import make_puzzles as generator
from chess_puzzles.make_puzzles import make_puzzles
from katgym.errors import UnknownNameError, UsageError
from katgym_envs.games.chess_game import mate
from katgym_envs.games.chess_game.engine import AlphaBetaPlayer, evaluate, search
from katgym_envs.games.chess_game.env import ChessEnv, puzzles
from katgym_envs.games.chess_game.mate import (
    is_mate_in,
    keeps_mate,
    key_moves,
    longest_defence,
    mate_distance,
)
from katgym_envs.games.chess_game.notation import parse_move
from katgym_envs.games.moves import IllegalMoveError

BACK_RANK = "6k1/5ppp/8/8/8/8/8/R3K2R w - - 0 1"  # Ra8#
LADDER = "4k3/8/R7/1R6/8/8/8/4K3 w - - 0 1"  # Rb7 and Ra8#


def check_proof(puzzle: dict[str, Any]) -> None:
    """Prove a puzzle: no shorter mate, and exactly the stored first moves keep it."""
    board = chess.Board(puzzle["fen"])
    assert board.is_valid()
    assert not is_mate_in(board, puzzle["mate_in"] - 1)
    assert [m.uci() for m in key_moves(board, puzzle["mate_in"])] == puzzle["key_moves"]
    assert puzzle["key_moves"]


# ---- proofs and puzzles


def test_the_search_knows_hand_made_mates() -> None:
    assert [m.uci() for m in key_moves(chess.Board(BACK_RANK), 1)] == ["a1a8"]
    board = chess.Board(LADDER)
    assert not is_mate_in(board, 1)
    assert mate_distance(board, 3) == 2
    assert keeps_mate(board, chess.Move.from_uci("b5b7"), 2)
    assert not keeps_mate(board, chess.Move.from_uci("e1e2"), 2)
    assert not is_mate_in(chess.Board(), 2)
    assert not is_mate_in(chess.Board(BACK_RANK), 0)


def test_stalemate_is_no_mate() -> None:
    board = chess.Board("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1")
    assert not keeps_mate(board, chess.Move.from_uci("f1f7"), 2)
    assert is_mate_in(board, 1)


def test_the_defence_is_the_longest() -> None:
    board = chess.Board(LADDER)
    board.push_uci("b5b7")
    distances = {}
    for reply in list(board.legal_moves):
        board.push(reply)
        distances[reply] = mate_distance(board, 2)
        board.pop()
    assert distances[longest_defence(board, 2)] == max(distances.values())


def test_there_are_enough_different_puzzles_of_every_length_and_split() -> None:
    counts = Counter((p["split"], p["mate_in"]) for p in puzzles())
    assert len(puzzles()) == 444
    assert counts == {
        (split, n): number
        for n in (1, 2, 3)
        for split, number in (("train", 36), ("validation", 12), ("test", 100))
    }
    assert len({p["puzzle_id"] for p in puzzles()}) == 444
    positions = set()
    for puzzle in puzzles():
        board = chess.Board(puzzle["fen"])
        positions.add(min(board.epd(), board.mirror().epd()))
    assert len(positions) == 444


def test_every_puzzle_is_proven() -> None:
    def check_all() -> None:
        for puzzle in puzzles():
            check_proof(puzzle)

    search = Path(mate.__file__)
    prove("chess puzzles", [search.with_name("puzzles.jsonl"), search], check_all)


@pytest.mark.slow
def test_the_generator_repeats_itself() -> None:
    first, again = (make_puzzles(3, seed=5, lengths=(1,)) for _ in range(2))
    assert first == again
    assert [puzzle["mate_in"] for puzzle in first] == [1, 1, 1]
    for puzzle in first:
        check_proof(puzzle)


def test_the_generator_writes_the_committed_puzzles() -> None:
    def compare() -> None:
        made = make_puzzles(10, seed=0)  # fewer are the first of more
        ids = {puzzle["puzzle_id"] for puzzle in made}
        assert made == [puzzle for puzzle in puzzles() if puzzle["puzzle_id"] in ids]
        assert len(ids) == 30

    search = Path(mate.__file__)
    files = [search.with_name("puzzles.jsonl"), search, Path(generator.__file__)]
    prove("first chess puzzles of the generator", files, compare)


# ---- mate mode


@pytest.mark.slow
def test_the_oracle_solves_every_puzzle_in_its_number_of_moves() -> None:
    env = ChessEnv()
    num_played = 0
    for split in env.splits:
        for task in env.tasks(split):
            env.reset(options={"split": split, "task_id": task.task_id})
            reward, info = finish(env, ChessEnv.oracle_action)
            assert (reward, info["end_reason"]) == (1.0, "checkmate")
            assert info["num_turns"] <= task.data["mate_in"]
            num_played += 1
    assert num_played == 444


def test_the_longest_defence_makes_the_oracle_use_all_moves() -> None:
    env = ChessEnv(mate_in=3)
    lengths = []
    for task in env.tasks()[:10]:
        env.reset(options={"task_id": task.task_id})
        lengths.append(finish(env, ChessEnv.oracle_action)[1]["num_turns"])
    assert lengths == [3] * 10


def test_every_key_move_is_accepted_and_no_other() -> None:
    env = ChessEnv(mate_in=2)
    for task in [task for task in env.tasks() if len(task.answer) > 1][:4]:
        board = chess.Board(task.data["fen"])
        for move in board.legal_moves:
            env.reset(options={"task_id": task.task_id})
            observation, reward, terminated, *_ = env.step(play(move.uci()))
            assert terminated == (move.uci() not in task.answer)
            assert reward == 0.0
            assert ("You failed." in observation[0]["content"]) == terminated


def test_random_moves_seldom_solve_puzzles() -> None:
    env = ChessEnv(mate_in=3)
    rng = random.Random(0)
    rewards = []
    for seed in range(20):
        env.reset(seed=seed)
        rewards.append(finish(env, lambda env: env.random_action(rng))[0])
    assert sum(rewards) <= 2


def test_a_puzzle_starts_with_the_side_the_board_and_the_number_of_moves() -> None:
    env = ChessEnv(mate_in=2, split="test")
    observation, _ = env.reset(options={"task_id": "m2-005"})
    text = observation[0]["content"]
    assert "in at most 2 moves against any defence" in text
    assert f"FEN: {env.task.data['fen']}" in text
    assert "  a b c d e f g h" in text


# ---- moves


def test_moves_are_read_in_san_and_uci_and_castling_in_every_spelling() -> None:
    board = chess.Board(BACK_RANK)
    for text in ("Ra8#", "Ra8", "a1a8", "ra8", " A1A8. ", "move: Ra8!"):
        assert parse_move(board, text) == chess.Move.from_uci("a1a8"), text
    board = chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")
    for text in ("O-O", "0-0", "e1g1", "o-o"):
        assert parse_move(board, text) == chess.Move.from_uci("e1g1"), text


def test_a_bishop_is_told_from_a_pawn_by_case() -> None:
    board = chess.Board("4k3/8/8/8/8/2n5/1P1B4/4K3 w - - 0 1")
    assert parse_move(board, "bxc3").uci() == "b2c3"
    assert parse_move(board, "Bxc3").uci() == "d2c3"
    with pytest.raises(IllegalMoveError, match="fits several moves"):
        parse_move(board, "BXC3")


PAWN = "1n5k/P7/8/8/8/8/8/K7 w - - 0 1"
PASSED = "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1"
CASTLES = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"
KNIGHTS = "4k3/8/8/8/8/5N2/8/1N2K3 w - - 0 1"
WRITTEN = {
    (chess.STARTING_FEN, "e2e4"): (
        "e2-e4", "e2–e4", "e2 → e4", "e2->e4", "e2 e4", "1. e4", "1.e4", "12 . e4!", "Move: 1. e4",
        "e4+", "e4#", "e4!?", "`e4`", "**e4**", "♙e4", "e4 (e2e4)",
    ),
    (chess.STARTING_FEN, "g1f3"): (
        "Ng1f3", "Ng1-f3", "♘f3", "♘\ufe0ef3", "♘ f3", "♞g1-f3", "3... Nf3", "3…Nf3", "Nf3 (g1f3)",
    ),
    (PAWN, "a7a8q"): (
        "a8Q", "a8q", "a8(Q)", "a8 (Q)", "a8/Q", "a8=♕", "a8 = Q", "a7a8=Q", "a7-a8Q", "a7a8q",
        "a8Q+", "1. a8=Q#",
    ),
    (PAWN, "a7b8n"): ("axb8N", "axb8(N)", "a7xb8=N", "a7×b8n"),
    (PASSED, "e5d6"): (
        "exd6 e.p.", "exd6e.p.", "exd6 ep", "exd6 (e.p.)", "e5xd6 e. p.", "exd6+ e.p.",
        "exd6 e.p.!", "exd6 en passant", "ed6",
    ),
    (CASTLES, "e1g1"): ("0-0", "O–O", "0-0+", "O-O!", "1. O-O", "O - O", "0-0 (e1g1)"),
    (CASTLES, "e1c1"): ("o-o-o", "0-0-0#", "O-O-O (e1c1)"),
    (KNIGHTS, "b1d2"): ("Nbd2", "N1d2", "Nb1-d2", "1. Nbd2"),
}  # fmt: skip
NO_MOVES = {
    chess.STARTING_FEN: (
        "e5", "Ke2", "O-O", "e2e5", "e4 e5", "1. e4 e5", "1.e4 e5 2.Nf3", "e4, d4", "e4 or d4",
        "Nf3 (b1c3)", "play e4", "e4 e.p.", "e4=Q", "Nf3=Q", "--", "0000", "Z0", "@@@@", "1.",
        "1-0",
        "e4" * 40,
    ),
    "4k3/8/8/8/4P3/8/8/4K3 w - - 0 1": ("1. e4 e5", "1... e4 e5"),  # e4e5 would be a move
    PAWN: ("a8", "a7a8", "a8=K", "a8QQ", "b8=Q"),
    PASSED: ("e6 e.p.", "Kd1 e.p."),
}  # fmt: skip


def test_moves_are_read_as_readers_and_programs_write_them() -> None:
    found = {
        (fen, text): parse_move(chess.Board(fen), text).uci()
        for (fen, _), texts in WRITTEN.items()
        for text in texts
    }
    assert found == {(fen, text): uci for (fen, uci), texts in WRITTEN.items() for text in texts}


def test_nothing_else_becomes_a_move(subtests: pytest.Subtests) -> None:
    for fen, texts in NO_MOVES.items():
        for text in texts:
            with subtests.test(text=text), pytest.raises(IllegalMoveError):
                parse_move(chess.Board(fen), text)
    with pytest.raises(IllegalMoveError, match=r"^'1\. Nd2' fits several moves: 'Nbd2', 'Nfd2'\.$"):
        parse_move(chess.Board(KNIGHTS), "1. Nd2")


@pytest.mark.parametrize("fen", [chess.STARTING_FEN, PAWN, PASSED, CASTLES, KNIGHTS])
def test_every_spelling_of_every_legal_move_is_that_move(fen: str) -> None:
    board = chess.Board(fen)
    for move in board.legal_moves:
        san, uci = board.san(move), move.uci()
        for text in (
            san,
            uci,
            board.lan(move),
            f"7. {san}",
            f"{san} ({uci})",
            f"{san}!",
            uci.upper(),
        ):
            assert parse_move(board, text) == move, text


def test_legal_moves_are_listed_in_both_notations() -> None:
    env = ChessEnv(mode="game")
    task = next(task for task in env.tasks() if task.data["colour"] == "white")
    env.reset(options={"task_id": task.task_id})
    observation, *_ = env.step(katgym.assistant("", [("legal_moves", {})] * 2))
    assert observation[0]["content"].startswith("a3 (a2a3) | a4 (a2a4) | Na3 (b1a3) | ")
    assert observation[0]["content"].count("|") == 19
    assert [result.stage for result in env.last_tool_results] == [0, 0]


def test_illegal_moves_are_counted_and_lose_in_the_end() -> None:
    env = ChessEnv(mode="game", max_retries=1)
    env.reset(seed=0)
    observation, *_ = env.step(play("e2e5"))
    assert observation[0]["content"].startswith("'e2e5' is not a legal move.\nLegal moves (20): ")
    assert observation[0]["content"].endswith("Try again: 1 try left before you lose.")
    _, reward, terminated, _, info = env.step("Ke9")
    assert (reward, terminated, info["end_reason"]) == (0.0, True, "illegal_move")


# ---- whole games


@pytest.mark.slow
def test_the_oracle_beats_a_random_opponent_as_white_and_black() -> None:
    env = ChessEnv(mode="game")
    colours = set()
    for seed in range(6):
        env.reset(seed=seed)
        colours.add(env.task.data["colour"])
        assert finish(env, ChessEnv.oracle_action)[0] == 1.0
    assert colours == {"white", "black"}


@pytest.mark.slow
def test_the_oracle_beats_a_random_opponent_in_100_games() -> None:
    env = ChessEnv(mode="game")
    rewards = []
    for seed in range(100):
        env.reset(seed=seed)
        rewards.append(finish(env, ChessEnv.oracle_action)[0])
    assert sum(rewards) >= 99


@pytest.mark.slow
def test_the_oracle_scores_above_half_against_the_engine() -> None:
    env = ChessEnv(mode="game", opponent="alphabeta", depth=1)
    rewards = []
    for seed in range(10):
        env.reset(seed=seed)
        rewards.append(finish(env, ChessEnv.oracle_action)[0])
    assert sum(rewards) >= 7


@pytest.mark.slow
def test_random_games_end_and_pay_0_a_half_or_1() -> None:
    env = ChessEnv(mode="game")
    rewards = set()
    for seed in range(2):
        env.reset(seed=seed)
        rng = random.Random(seed)
        rewards.add(finish(env, lambda env, rng=rng: env.random_action(rng))[0])
    assert rewards <= {0.0, 0.5, 1.0}


def test_a_stalemate_pays_a_half() -> None:
    env = ChessEnv(mode="game")
    env.reset(seed=0)
    env.board = chess.Board("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1")
    env.colour = chess.WHITE
    observation, reward, terminated, _, info = env.step(play("f1f7"))
    assert (reward, terminated, info["end_reason"]) == (0.5, True, "stalemate")
    assert observation[0]["content"] == "You played Qf7.\nThe game is a draw: stalemate."


def test_an_unfinished_game_scores_0() -> None:
    env = ChessEnv(mode="game", max_turns=2)
    env.reset(seed=0)
    reward, info = finish(env, ChessEnv.oracle_action)
    assert (reward, info["reward"]["failure_kind"]) == (0.0, "max_turns")


def test_the_engine_mates_takes_and_counts() -> None:
    player = AlphaBetaPlayer(1, seed=0)
    assert player.choose(chess.Board(BACK_RANK)).uci() == "a1a8"
    hanging = chess.Board("4k3/8/8/3q4/8/2N5/8/4K3 w - - 0 1")
    assert player.choose(hanging).uci() == "c3d5"
    assert evaluate(chess.Board()) == 0
    assert search(chess.Board("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1"), 1, -(10**6), 10**6) == 100_000
    assert hanging.fen() == "4k3/8/8/3q4/8/2N5/8/4K3 w - - 0 1"


def test_wrong_options_are_refused_with_what_is_allowed(subtests: pytest.Subtests) -> None:
    alphabeta = {"mode": "game", "opponent": "alphabeta"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mode": "mates"}, "unknown mode 'mates'. Did you mean 'mate'?"),
        ({"mate_in": 4}, "mate_in is 1, 2, 3 or None, got 4"),
        ({"mode": "game", "mate_in": 2}, "mate_in=2 is for mode='mate', this is mode='game'"),
        ({"opponent": "random"}, "opponent='random' is for mode='game', this is mode='mate'"),
        ({"mode": "game", "opponent": "stockfish"}, "unknown opponent 'stockfish'. Known: "),
        ({"mode": "game", "depth": 2}, "depth=2 is for mode='game', opponent='alphabeta'"),
        ({**alphabeta, "depth": 9}, "depth is an int from 1 to 4, got 9"),
        ({"illegal_move": "los"}, "unknown illegal_move 'los'. Did you mean 'loss'?"),
    ]
    for kwargs, text in cases:
        with subtests.test(**kwargs):
            with pytest.raises(UsageError) as caught:
                ChessEnv(**kwargs)
            assert str(caught.value).startswith(text)
            assert isinstance(caught.value, UnknownNameError) == text.startswith("unknown")

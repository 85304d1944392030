"""Frauds on runs, each of which `katgym verify` catches; honest runs, which it does not refuse.

Most forgers are patient: they compute chain, root and summary of the forged run anew. Not here:
what no verification sees (docs/guides/verify.md).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest
from nightly import IS_NIGHT

pytest.importorskip("torch", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")

import claim_frauds  # noqa: F401 - adds its frauds
import field_frauds  # noqa: F401 - adds its frauds
import result_frauds  # noqa: F401 - adds its frauds
from forgery import read_forgery, with_turn, write_forgery
from frauds import FRAUDS, Runs
from verify_runs import ARITHMETIC, play_run, tiny_model, verify

import katgym
from katgym import Sampling
from katgym.environment.failure import FailureKind
from katgym.evaluation.verification.report import Verdict
from katgym.evaluation.verification.restep import restep
from katgym.policies.hf.hf_policy import HfConfig, HfPolicy

AT_NIGHT = {
    "another_temperature",
    "best_of_many_draws_of_these_weights",
    "oracle_in_the_tokens_of_a_model",
    "other_weights_with_the_log_probs_of_these",
}
"""Frauds by which much is generated; `other_weights` and those of its kind stay by day."""
CHECKS = sorted({case.check for case in FRAUDS.values()})
TINY = (ARITHMETIC, "katgym/OpenSpiel-v0?game=tic_tac_toe&max_turns=3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    model, other = tiny_model(root / "model"), tiny_model(root / "other", seed=1)
    uri = f"hf:{model}"
    folders = {
        "random": play_run(root / "random", "random"),
        "oracle": play_run(root / "oracle", "oracle"),
        "later": play_run(root / "later", "random", seed=5),
        "tiny": play_run(root / "tiny", uri, TINY, num_tasks=2, sampling=Sampling(max_tokens=24)),
    }
    return Runs(
        folders,
        HfPolicy.load(str(model), name=uri, config=HfConfig(device="cpu")),
        HfPolicy.load(str(other), name=uri, config=HfConfig(device="cpu")),
    )


def test_there_are_a_hundred_frauds() -> None:
    assert len(FRAUDS) >= 100
    assert FRAUDS.keys() > AT_NIGHT


@pytest.mark.parametrize("check", CHECKS)
def test_frauds_are_caught_by(
    check: str, runs: Runs, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    frauds = {name: case for name, case in FRAUDS.items() if case.check == check}
    for name in frauds if IS_NIGHT else sorted(frauds.keys() - AT_NIGHT):
        with subtests.test(fraud=name):
            case = frauds[name]
            forged = read_forgery(runs.folders[case.run])
            case.edit(forged, runs)
            folder = write_forgery(forged, tmp_path / name, is_patient=case.is_patient)
            report = verify(folder)
            assert report.verdict is case.verdict, report.to_json()
            assert report.checks[check].verdict is case.verdict, report.to_json()


def test_an_honest_run_is_verified_also_when_it_was_written_again(
    runs: Runs, tmp_path: Path
) -> None:
    for run in ("random", "oracle", "tiny"):
        report = verify(runs.folders[run])
        assert (report.verdict, report.grounds) == (Verdict.VERIFIED, "rewards; policy")
        again = verify(write_forgery(read_forgery(runs.folders[run]), tmp_path / run))
        assert asdict(again)["checks"].keys() == asdict(report)["checks"].keys()
        assert again.verdict is Verdict.VERIFIED
    # Without re-scoring, a model's name is not verified.
    report = verify(runs.folders["tiny"], rescore_tokens=0)
    assert (report.verdict, report.grounds) == (Verdict.VERIFIED, "rewards; policy not")


def test_another_root_than_the_one_told_refutes(runs: Runs) -> None:
    report = verify(runs.folders["random"], root="0" * 64)
    assert report.checks["chain"].refuted == [f"the root is {report.root}, expected was {'0' * 64}"]


def test_bytes_changed_in_the_database_refute(runs: Runs, tmp_path: Path) -> None:
    folder = write_forgery(read_forgery(runs.folders["random"]), tmp_path / "run")
    with sqlite3.connect(folder / "live.sqlite") as connection:
        connection.execute("UPDATE turns SET text = replace(text, 'Answer', 'Reward')")
    connection.close()
    report = verify(folder)
    assert report.verdict is Verdict.REFUTED
    assert "the bytes of turns" in report.checks["files"].refuted[0]


class Dice(katgym.Env):
    """Says a number that no seed gives again, as a program might."""

    is_deterministic = False
    default_max_turns = 3

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-{n}", prompt=f"Throw {n}.") for n in range(2)]

    def reply(self, message: katgym.Message) -> str:
        return f"It fell on {os.urandom(4).hex()}."

    @katgym.scorer()
    def played(self) -> bool:
        return True


def test_a_model_is_tested_on_what_an_env_said_there_and_not_here(
    runs: Runs, tmp_path: Path
) -> None:
    katgym.register("dice_test/Dice-v0", Dice, should_replace=True)
    more = {"num_tasks": 2, "sampling": Sampling(max_tokens=12)}
    folder = play_run(tmp_path / "run", runs.tiny.name, ["dice_test/Dice-v0"], **more)
    report = verify(folder)
    assert (report.verdict, report.grounds) == (Verdict.VERIFIED, "rewards; policy")
    assert report.not_compared_text == "what the env said in 12 of 12 turns"
    # What is told otherwise no longer is what the recorded tokens were sampled after.
    forged = read_forgery(folder)
    (said,) = forged.rollouts[0].turns[1].messages
    hinted = [{**said, "content": "It fell on its edge."}]
    forged.change(0, with_turn(forged.rollouts[0], 1, messages=hinted))
    report = verify(write_forgery(forged, tmp_path / "forged"))
    assert report.checks["policy"].verdict is Verdict.REFUTED
    assert "turn 1: its tokens are others" in report.checks["policy"].refuted[0]
    # A turn that goes on from itself has no prompt to be found; no store writes it.
    rollout = forged.rollouts[0]
    tokens = msgspec.structs.replace(rollout.turns[1].tokens, parent=1)
    circle = with_turn(rollout, 1, tokens=tokens)
    env = katgym.make("dice_test/Dice-v0")
    found = asyncio.run(restep(env, circle, limits=katgym.Limits(), policy=runs.tiny))
    assert found.verdict is Verdict.REFUTED


def test_a_context_that_was_full_is_known_to_the_policy_alone(runs: Runs, tmp_path: Path) -> None:
    uri = f"{runs.tiny.name}?max_context_tokens=80"
    folder = play_run(tmp_path / "run", uri, [ARITHMETIC], num_tasks=1)
    assert read_forgery(folder).rollouts[0].failure_kind is FailureKind.CONTEXT_LENGTH
    assert verify(folder).checks["episodes"].verdict is Verdict.VERIFIED
    alone = verify(folder, rescore_tokens=0)
    assert alone.checks["episodes"].verdict is Verdict.INCOMPLETE

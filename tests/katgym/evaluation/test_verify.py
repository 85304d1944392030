"""Verification of runs that were interrupted, of programs and of two seats; the test on tokens."""

import asyncio
import itertools
import json
from dataclasses import replace

import pytest
from forgery import read_forgery, session_of, with_reward, with_turn, write_forgery

import katgym
from katgym import ToolResult, Turn, assistant, user
from katgym.cli.main import main
from katgym.errors import UsageError
from katgym.evaluation.chain import ChainLink, last_link, link_of, session_digest
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.run import evaluate
from katgym.evaluation.store import open_run
from katgym.evaluation.verification.report import Verdict
from katgym.evaluation.verification.rescore import FLOAT32, judge_scores
from katgym.evaluation.verification.restep import restep_match
from katgym.evaluation.verification.verify import verify_run
from katgym.play.engine import RolloutEngine
from katgym.policies.token_scores import TokenScores
from katgym.rollout_store import RolloutStore

ARITHMETIC = "katgym/Arithmetic-v1"


def play(folder, policy="random", env=ARITHMETIC, **more):
    config = {"num_tasks": 2, "group_size": 2, **more}
    return asyncio.run(evaluate(EvalConfig(envs=(env,), policy=policy, **config), folder))


def verify(folder):
    return asyncio.run(verify_run(folder))


@pytest.mark.slow
def test_a_run_has_a_root_that_its_chain_ends_in(tmp_path, capsys):
    command = ["eval", ARITHMETIC, "--policy", "random", "--tasks", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    root = json.loads((tmp_path / "summary.json").read_text())["root"]
    assert f"root {root}" in capsys.readouterr().out
    with RolloutStore.open(tmp_path) as store:
        records = store.sessions()
        lock = json.loads((tmp_path / "lock.json").read_text())
        assert last_link(lock, records) == ChainLink(number=2, segment=1, sha256=root)
        assert [link_of(record).number for record in records] == [1, 2]
    assert main(["verify", str(tmp_path), "--set", f"root={root}"]) == 0
    assert "verified (rewards; policy)" in capsys.readouterr().out
    assert main(["verify", str(tmp_path), "--set", "root=0000"]) == 1
    assert "expected was 0000" in " ".join(capsys.readouterr().out.split())


def test_a_digest_is_the_same_before_and_after_the_disk(tmp_path):
    # numbers of other types than they come back with, lone surrogates, a result told otherwise
    turn = Turn(
        messages=[user("\ud800?")],
        answer=assistant("", [("f", {})]),
        tools=({"type": "function", "function": {"name": "f"}},),
        tool_results=(ToolResult(call_id="call_0", name="f", content="x", called_s=1),),
        completed_s=1,
        ended_s=2,
    )
    play(tmp_path / "run")
    session = read_forgery(tmp_path / "run").sessions[0]
    told = replace(
        session.record.rollout,
        turns=[turn],
        sampling=katgym.Sampling(temperature=0),
        wall_s=3,
        artifacts={"a": (1, 2), "b": "\udfff"},
    )
    session = session_of(session, told)
    with RolloutStore.open(tmp_path / "store") as store:
        store.add_sessions([session])
        live = store.stored(session.record.session_id)
        store.seal()
        sealed = store.stored(session.record.session_id)
    assert session_digest(session) == session_digest(live) == session_digest(sealed)
    other = replace(live, turns=[*live.turns, turn])
    assert session_digest(other) != session_digest(live)


@pytest.mark.slow
def test_a_run_that_was_stopped_is_incomplete_and_then_verified(tmp_path):
    config = EvalConfig(envs=(ARITHMETIC,), policy="random", num_tasks=3, group_size=2)
    plan, policy = Plan.of(config), katgym.policy("random")

    async def play_three():
        engine = RolloutEngine(policy, sampling=config.sampling)
        return [r async for _, r in engine.run(itertools.islice(plan.requests(), 3))]

    with open_run(tmp_path, plan, policy.describe()) as store:
        store.append(asyncio.run(play_three()))
    stopped = verify(tmp_path)
    assert (stopped.verdict, stopped.checks["attempts"].refuted) == (Verdict.INCOMPLETE, [])
    assert stopped.checks["attempts"].unverified[0].endswith(": not played")
    assert main(["verify", str(tmp_path)]) == 2
    asyncio.run(evaluate(config, tmp_path))
    whole = verify(tmp_path)
    assert (whole.verdict, whole.num_segments) == (Verdict.VERIFIED, 2)
    with RolloutStore.open(tmp_path) as store:
        store.seal()
    assert verify(tmp_path).root == whole.root
    assert verify(tmp_path).verdict is Verdict.VERIFIED


def test_what_is_no_run_or_has_no_chain_is_wrong_usage(tmp_path, capsys):
    with pytest.raises(UsageError, match=r"holds no lock\.json"):
        verify(tmp_path)
    play(tmp_path / "run")
    path = tmp_path / "run" / "lock.json"
    lock = json.loads(path.read_text())
    del lock["chain"]
    path.write_text(json.dumps(lock))
    assert main(["verify", str(tmp_path / "run")]) == 2
    assert "has no hash chain" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_programs_may_print_otherwise_but_an_answer_earns_what_it_earns(tmp_path):
    script = tmp_path / "script.jsonl"
    code = json.dumps({"code": "import time; print(time.time_ns())"})
    call = {"function": {"name": "python", "arguments": code}}
    lines = [{"content": "", "tool_calls": [call]}, "It is 7. \\boxed{7}"]
    script.write_text("\n".join(json.dumps(line) for line in lines))
    play(tmp_path / "run", f"scripted:{script}", "katgym/MathCode-v1", group_size=1)
    honest = verify(tmp_path / "run")
    assert honest.verdict is Verdict.VERIFIED, honest.to_json()
    forged = read_forgery(tmp_path / "run")
    forged.change_all(lambda rollout: with_reward(rollout, 1.0))
    report = verify(write_forgery(forged, tmp_path / "forged"))
    assert report.checks["episodes"].verdict is Verdict.REFUTED
    assert "graded anew it is 0.0" in report.checks["episodes"].refuted[0]


@pytest.mark.slow
def test_a_leaderboard_marks_what_it_verified_itself(tmp_path, capsys):
    play(tmp_path / "honest")
    forged = read_forgery(tmp_path / "honest")
    forged.change_all(lambda rollout: with_reward(rollout, 1.0))
    write_forgery(forged, tmp_path / "forged")
    command = ["leaderboard", str(tmp_path / "honest"), str(tmp_path / "forged")]
    command += ["--out", str(tmp_path / "board")]
    assert main(command) == 0
    assert "Verified" not in (tmp_path / "board" / "leaderboard.md").read_text()
    capsys.readouterr()
    assert main([*command, "--set", "verify=true", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["honest"]["verified"] == "rewards; policy"
    assert found["forged"]["verified"].startswith("refuted; rewards of ")
    for name in ("leaderboard.md", "leaderboard.html"):
        text = (tmp_path / "board" / name).read_text()
        assert "Verified" in text and "rewards; policy" in text and "refuted; rewards" in text


@pytest.mark.slow
def test_a_repair_is_done_again_and_its_diff_graded(tmp_path):
    env = "katgym/SWE-v0?tasks=toy"
    split = katgym.make("katgym/SWE-v0", tasks="toy").splits[0]
    more = {"num_tasks": 1, "group_size": 1, "split": split}
    play(tmp_path / "oracle", "oracle", env, **more)
    play(tmp_path / "noop", "noop", env, **more)
    gold = read_forgery(tmp_path / "oracle").rollouts[0]
    assert verify(tmp_path / "oracle").verdict is Verdict.VERIFIED

    def forge(name, change):
        forged = read_forgery(tmp_path / "noop")
        forged.change_all(change)
        return verify(write_forgery(forged, tmp_path / name)).checks["episodes"]

    raised = forge("raised", lambda rollout: with_reward(rollout, 1.0))
    assert raised.verdict is Verdict.REFUTED
    # The gold diff beside actions that did not make it earns what it says; it is not believed.
    told = {"reward": gold.reward, "artifacts": gold.artifacts}
    placed = forge("placed", lambda rollout: replace(rollout, **told))
    assert placed.verdict is Verdict.INCOMPLETE
    assert "graded anew the reward is the same" in placed.unverified[0]
    empty = {"model_patch": "", "outcome": "patch_empty"}
    emptied = forge(
        "emptied", lambda r: with_reward(replace(r, artifacts={**r.artifacts, **empty}), 1.0)
    )
    assert emptied.verdict is Verdict.REFUTED


def test_both_seats_of_a_match_are_played_again():
    def make():
        return katgym.make("katgym/OpenSpiel-v0", game="tic_tac_toe", opponent="self")

    seats = make().seats
    players = dict(zip(seats, ("random", "oracle"), strict=True))
    rollouts = asyncio.run(katgym.run_match(make(), players, seed=3))
    found = asyncio.run(restep_match(make(), rollouts))
    assert {seat: restep.verdict for seat, restep in found.items()} == dict.fromkeys(
        seats, Verdict.VERIFIED
    )
    first = seats[0]
    forged = {**rollouts, first: with_reward(rollouts[first], 0.5)}
    found = asyncio.run(restep_match(make(), forged))
    assert found[first].verdict is Verdict.REFUTED
    told = with_turn(rollouts[first], 1, messages=[user("You have won.")])
    found = asyncio.run(restep_match(make(), {**rollouts, first: told}))
    assert "turn 1 has other messages" in found[first].reason


def score(**fields):
    whole = {"num_tokens": 100, "logprob_error": 1e-6, "log_e": (-3.0, -1.0), "num_draws": 100}
    return TokenScores(**{**whole, "num_misses": 0, **fields})


def test_tokens_are_refused_at_the_levels_that_the_tests_state():
    assert list(judge_scores([score(), score()], FLOAT32)) == []
    # ln(2 * 3 / 1e-6) = 15.6; the mean of e^17 and nothing is e^16.3
    (found,) = judge_scores([score(log_e=(17.0, -90.0)), score(log_e=(-90.0, -90.0))], FLOAT32)
    assert found == (0, "these weights did not draw its tokens (log e = 16.3)")
    assert next(judge_scores([score(log_e=(16.0, -90.0))], FLOAT32))[0] == 0
    # n KL(5/100 || 0.001) = 14.9, of 6: 18.8
    assert list(judge_scores([score(num_misses=5), score()], FLOAT32)) == []
    ((place, text),) = judge_scores([score(num_misses=6), score()], FLOAT32)
    assert (place, text) == (0, "6 of 100 tokens are not those that its seed draws")
    ((place, text),) = judge_scores([score(logprob_error=0.02)], FLOAT32)
    assert (place, text) == (0, "its log-probs differ by 0.02 on average")
    # what no rollout shows alone, all together do
    found = list(judge_scores([score(num_misses=3)] * 20, FLOAT32))
    assert found[-1][0] is None

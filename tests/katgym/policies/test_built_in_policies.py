"""`oracle`, `noop`, `random`, `scripted:FILE`, and the URIs that name policies."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys

import pytest

import katgym
from katgym.errors import UnknownNameError, UsageError
from katgym.plugins.built_ins import POLICIES, katgym_register_policies
from katgym.policies.scripted import load_script, play_script
from katgym.policies.uri import policy

SCHEMES = {name: entry_point for name, (entry_point, _) in POLICIES.items()}


class Pick(katgym.Env):
    splits = ("train",)

    def load_tasks(self, split):
        return [katgym.Task(task_id=f"t{i}", prompt=f"Say {i}.", answer=str(i)) for i in range(3)]

    def oracle_action(self):
        return self.task.answer

    def random_action(self, rng):
        return str(rng.randrange(10**6))

    @katgym.scorer()
    def correct(self):
        return self.final_answer == self.task.answer


def play(player, **kwargs):
    return asyncio.run(katgym.run_rollout(Pick(), player, **{"seed": 0, **kwargs}))


def test_the_oracle_solves_and_silence_does_not():
    assert play("oracle").reward.value == 1.0
    rollout = play("noop")
    assert rollout.reward.value == 0.0
    assert rollout.messages[-1] == {"role": "assistant", "content": ""}


def calls_per_turn(env, player, **kwargs):
    rollout = asyncio.run(katgym.run_rollout(env, player, **{"seed": 0, **kwargs}))
    return [len(turn.tool_results) for turn in rollout.turns], rollout


@pytest.mark.parametrize(("accuracy", "low", "high"), [(0, 0, 0), (0.4, 0.25, 0.55), (1, 1, 1)])
def test_an_oracle_of_some_accuracy_is_right_as_often_and_the_same_again(accuracy, low, high):
    async def play():
        group = await katgym.run_group(
            Pick(), f"oracle?accuracy={accuracy}", group_size=100, seed=1
        )
        return [
            f"Say {r.messages[-1]['content']}." == r.messages[0]["content"] for r in group.rollouts
        ]

    found = asyncio.run(play())
    assert low <= sum(found) / len(found) <= high
    assert asyncio.run(play()) == found


@pytest.mark.parametrize("level", [6, 10])
@pytest.mark.parametrize("max_calls", [1, 2, 3])
def test_an_oracle_of_few_calls_a_turn_solves_in_more_turns(level, max_calls):
    env = katgym.make("katgym/TreasureHunt-v1", level=level, max_turns=60)
    all_at_once, _ = calls_per_turn(env, "oracle")
    few, rollout = calls_per_turn(env, f"oracle?max_calls={max_calls}")
    assert rollout.reward.value == 1.0
    assert max(few) == max_calls and sum(few) == sum(all_at_once)
    assert len(few) == sum(-(-calls // max_calls) for calls in all_at_once)
    assert rollout.policy == f"oracle?max_calls={max_calls}"


@pytest.mark.parametrize("level", [1, 7, 9, 10])
def test_a_solution_that_counts_its_results_never_meets_half_of_them(level):
    env = katgym.make("katgym/Arithmetic-v1", level=level)
    all_at_once, _ = calls_per_turn(env, "oracle")
    one_each, rollout = calls_per_turn(env, "oracle?max_calls=1")
    assert rollout.reward.value == 1.0
    assert one_each == [1] * sum(all_at_once) + [0]
    assert calls_per_turn(env, "oracle?max_calls=99")[0] == all_at_once


def test_sessions_of_an_oracle_keep_their_calls_apart(context):
    env = katgym.make("katgym/Arithmetic-v1", level=7)
    env.reset(seed=0)
    player = policy("oracle?max_calls=1", schemes=SCHEMES)
    sessions = [player.start(dataclasses.replace(context(), env=env)) for _ in range(2)]

    async def first(session):
        return (await session.complete([], max_tokens=1)).message["tool_calls"]

    one, two = (asyncio.run(first(session)) for session in sessions)
    assert one == two and len(one) == 1


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("oracle?max_calls=0", "max_calls is an int >= 1, got 0"),
        ("oracle?max_calls=x", r"cannot read options 'max_calls=x'"),
        ("oracle?max_call=1", "Did you mean 'max_calls'"),
    ],
)
def test_options_of_an_oracle_that_are_none_are_refused(uri, text):
    with pytest.raises(UsageError, match=text):
        policy(uri, schemes=SCHEMES)


def test_random_play_follows_its_seed():
    said = [play("random", seed=s).messages[-1]["content"] for s in (1, 1, 2)]
    assert said[0] == said[1] != said[2]


def test_a_script_is_played_in_order_and_then_silence(tmp_path, context):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '"one"\n\n{"content": "", "tool_calls": [{"function": {"name": "search",'
        ' "arguments": {"query": "x"}}}]}\n'
    )

    async def run():
        session = policy(f"scripted:{path}", schemes=SCHEMES).start(context())
        return [(await session.complete([], max_tokens=1)).message for _ in range(3)]

    one, two, three = asyncio.run(run())
    assert one == {"role": "assistant", "content": "one"}
    assert two["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"query": "x"}'}
    assert three == {"role": "assistant", "content": ""}


def test_a_json_list_is_a_script_too(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[\n"one",\n"two"\n]')
    assert [m["content"] for m in load_script(path)] == ["one", "two"]
    path.write_text('{"role": "assistant", "content": "only"}')
    assert [m["content"] for m in load_script(path)] == ["only"]


def test_an_object_has_a_script_per_task(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"t0": ["0"], "t1": ["1"]}))
    player = play_script(load_script(path), "scripted:a.json")
    assert play(player, task_id="t1").reward.value == 1.0
    with pytest.raises(UsageError, match=r"unknown task id in 'scripted:a\.json' 't2'"):
        play(player, task_id="t2")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('"a"\n{oops\n', ":2: not JSON"),
        ('"a"\n7\n', ":2: an action is an assistant message or a str, got int"),
        ('["a", {"role": "user", "content": ""}]', ": action 2: an action has role 'assistant'"),
        ('{"t0": "a"}', ": 't0': a list of actions is needed, got 'a'"),
        ('{"t0": ["a", 5]}', ": 't0': action 2: an action is"),
    ],
)
def test_a_broken_script_names_its_place(tmp_path, text, error):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_script(path)
    assert f"{path}{error}" in str(caught.value)


def test_a_missing_script_and_a_missing_name(tmp_path):
    with pytest.raises(UsageError, match="cannot read the script"):
        policy(f"scripted:{tmp_path}/no", schemes=SCHEMES)
    with pytest.raises(UsageError, match="its form is scripted:FILE"):
        policy("scripted", schemes=SCHEMES)


@pytest.mark.parametrize("uri", ["oracle:x", "noop:x", "random:x"])
def test_plain_policies_take_nothing_behind_their_name(uri):
    with pytest.raises(UsageError, match="takes nothing behind its name, got 'x'"):
        policy(uri, schemes=SCHEMES)


def test_an_unknown_scheme_names_the_nearest_and_lists_all():
    with pytest.raises(UnknownNameError) as caught:
        policy("orcle", schemes=SCHEMES)
    assert "Did you mean 'oracle'?" in str(caught.value)
    assert "Schemes: hf, noop, openai, oracle" in str(caught.value)


@pytest.mark.parametrize("uri", ["", ":", "a b", None])
def test_what_is_no_uri_says_the_form(uri):
    with pytest.raises(UsageError, match="written scheme or scheme:rest, got"):
        policy(uri, schemes=SCHEMES)


def test_other_schemes_are_called_with_the_rest():
    schemes = {"upper": "builtins:str.upper", "wide": "builtins:repr"}
    assert policy("upper:a:b?c=1", schemes=schemes) == "A:B?C=1"
    assert policy("wide?x=1", schemes=schemes) == "'?x=1'"
    assert policy("wide", schemes=schemes) == "''"


def test_the_built_in_schemes_are_registered():
    registered = {}
    katgym_register_policies(
        lambda s, e, *, description="": registered.update({s: (e, description)})
    )
    assert registered == POLICIES
    assert policy("oracle").name == "oracle"


def test_light_policies_load_nothing_heavy():
    code = (
        "import sys; from katgym.policies.uri import policy; policy('oracle'); policy('random');"
        "policy('openai:http://x#y');"
        "print([m for m in ('torch', 'transformers', 'renderers', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

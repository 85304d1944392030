"""`oracle`, `noop`, `random`, `scripted:FILE`, and the URIs that name policies."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
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


def test_an_oracle_of_some_accuracy_is_right_as_often_and_the_same_again():
    async def play(accuracy):
        group = await katgym.run_group(
            Pick(), f"oracle?accuracy={accuracy}", group_size=100, seed=1
        )
        return [
            f"Say {r.messages[-1]['content']}." == r.messages[0]["content"] for r in group.rollouts
        ]

    for accuracy, low, high in ((0, 0, 0), (0.4, 0.25, 0.55), (1, 1, 1)):
        found = asyncio.run(play(accuracy))
        assert low <= sum(found) / len(found) <= high
        assert asyncio.run(play(accuracy)) == found


def test_an_oracle_of_few_calls_a_turn_solves_in_more_turns():
    for level, max_calls in itertools.product((6, 10), (1, 2, 3)):
        env = katgym.make("katgym/TreasureHunt-v1", level=level, max_turns=60)
        all_at_once, _ = calls_per_turn(env, "oracle")
        few, rollout = calls_per_turn(env, f"oracle?max_calls={max_calls}")
        assert rollout.reward.value == 1.0
        assert max(few) == max_calls and sum(few) == sum(all_at_once)
        assert len(few) == sum(-(-calls // max_calls) for calls in all_at_once)
        assert rollout.policy == f"oracle?max_calls={max_calls}"


def test_a_solution_that_counts_its_results_never_meets_half_of_them():
    for level in (1, 7, 9, 10):
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


def test_only_a_newline_ends_a_line_of_a_script(tmp_path):
    texts = ["a\u2028b\u2029c\x85d", "e\x7f"]
    path = tmp_path / "a.jsonl"
    for end in ("\n", "\r\n"):
        path.write_bytes(
            (json.dumps(texts[0], ensure_ascii=False) + end + end + json.dumps(texts[1])).encode()
        )
        assert [m["content"] for m in load_script(path)] == texts
    path.write_bytes(b'{"content":\r"x"}\n"y"\n')
    assert [m["content"] for m in load_script(path)] == ["x", "y"]


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


def test_a_broken_script_names_its_place(tmp_path, subtests):
    path = tmp_path / "a.jsonl"
    for text, error in {
        '"a"\n{oops\n': ":2: not JSON",
        '"a"\n7\n': ":2: an action is an assistant message or a str, got int",
        '["a", {"role": "user", "content": ""}]': ": action 2: an action has role 'assistant'",
        '{"t0": "a"}': ": 't0': a list of actions is needed, got 'a'",
        '{"t0": ["a", 5]}': ": 't0': action 2: an action is",
    }.items():
        path.write_text(text)
        with subtests.test(text):
            with pytest.raises(UsageError) as caught:
                load_script(path)
            assert f"{path}{error}" in str(caught.value)


WRONG_URIS = {
    "oracle?max_calls=0": "max_calls is an int >= 1, got 0",
    "oracle?max_calls=x": "cannot read options 'max_calls=x'",
    "oracle?max_call=1": "Did you mean 'max_calls'",
    "scripted:/no/such/file": "cannot read the script",
    "scripted": "its form is scripted:FILE",
    "oracle:x": "takes nothing behind its name, got 'x'",
    "noop:x": "takes nothing behind its name, got 'x'",
    "random:x": "takes nothing behind its name, got 'x'",
    "": "written scheme or scheme:rest, got",
    ":": "written scheme or scheme:rest, got",
    "a b": "written scheme or scheme:rest, got",
    None: "written scheme or scheme:rest, got",
}


def test_wrong_uris_say_what_is_wrong(subtests):
    for uri, text in WRONG_URIS.items():
        with subtests.test(uri=uri), pytest.raises(UsageError, match=text):
            policy(uri, schemes=SCHEMES)
    with pytest.raises(UnknownNameError) as caught:
        policy("orcle", schemes=SCHEMES)
    assert "Did you mean 'oracle'?" in str(caught.value)
    assert "Schemes: hf, noop, openai, oracle" in str(caught.value)


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


def test_light_policies_and_names_of_models_load_nothing_heavy():
    code = (
        "import sys; from katgym.policies.uri import policy; policy('oracle'); policy('random');"
        "policy('openai:http://x#y');"
        "from katgym.policies.model_source import model_source; model_source('Qwen/Qwen3-0.6B');"
        "print([m for m in ('torch', 'transformers', 'renderers', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

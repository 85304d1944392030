"""Rollouts of a group become a tree and parts: where they part, why, how it is laid out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rollout import plain_rollout

from katgym import Reward, Rollout, TokenRecord, Turn, assistant, user
from katgym.policies.base import BranchReason
from katgym.run_view.run_view import GroupView, RolloutView
from katgym.run_view.trees.group_tree import Cause, group_tree
from katgym.run_view.trees.rollout_json import Parts
from katgym.run_view.trees.tree_json import sharing, tree_json, tree_paths
from katgym.run_view.trees.tree_layout import FORK_ROW, ROW, tree_layout


def rollout(*records: TokenRecord | None, reward: float = 1.0, said: str = "hm") -> Rollout:
    turns = [
        Turn(
            messages=[user(f"go on {number}")],
            num_shared_messages=2 * number,
            answer=assistant(f"{said} {number}"),
            tokens=record,
        )
        for number, record in enumerate(records)
    ]
    return plain_rollout(reward=Reward(value=reward), turns=turns)


def record(parent: int | None, shared: int, prompt: list[int], answer: list[int], **more):
    return TokenRecord(
        parent=parent, num_shared=shared, prompt_ids=prompt, completion_ids=answer, **more
    )


ONE = rollout(record(None, 0, [1, 2], [10, 11, 12]), record(0, 5, [3], [20]), reward=1.0)
TWO = rollout(record(None, 0, [1, 2], [10, 11, 13]), reward=0.0)


def test_siblings_part_inside_an_answer_and_equal_ones_are_one_vertex():
    tree = group_tree([ONE, TWO])
    found = sorted((v.start, list(v.symbols)) for v in tree.vertices)
    assert found == [(0, []), (0, [1, 2, 10, 11]), (4, [12]), (4, [13]), (5, [3, 20])]
    fork = tree.vertices[1]
    assert fork.turns == [] and fork.rollouts == [0, 1] and fork.cause is Cause.PROMPT
    ends = {key: tree.vertices[index] for key, index in tree.ends.items()}
    assert ends[0, 0].symbols == [12] and ends[0, 0].cause is Cause.SAMPLED
    assert ends[0, 1].depth == 2 and ends[0, 1].rollouts == [0]
    assert ends[1, 0].symbols == [13] and ends[1, 0].end == 5
    # Paths: 1 2 10 11 12 3 20 and 1 2 10 11 13; the tree keeps 1 2 10 11, 12, 3 20 and 13.
    saved = sharing(tree)
    assert (saved.num_flat, saved.num_tree) == (12, 8)
    assert saved.share == pytest.approx(1 / 3)
    equal = group_tree([TWO, TWO, ONE])
    assert equal.ends[0, 0] == equal.ends[1, 0]
    assert equal.vertices[equal.ends[0, 0]].turns == [(0, 0), (1, 0)]
    assert equal.vertices[equal.ends[0, 0]].rollouts == [0, 1]


def test_a_branch_leaves_where_it_stops_sharing_and_keeps_its_reason():
    branch = record(1, 2, [7], [30], branch=BranchReason.COMPACTION)
    both = rollout(record(None, 0, [1, 2], [10]), record(0, 3, [3], [20]), branch)
    tree = group_tree([both])
    end = tree.vertices[tree.ends[0, 2]]
    assert list(end.symbols) == [7, 30] and end.start == 2
    assert end.cause is Cause.BRANCH and end.reason == "compaction"
    assert end.depth == 3  # in the row of its turn, not of its tokens
    assert tree.vertices[end.parent or 0].rollouts == [0]


def test_without_tokens_equal_messages_are_merged_whatever_ids_their_calls_have():
    def calling(call_id: str, reward: float) -> Rollout:
        made = rollout(None, reward=reward)
        function = {"name": "f", "arguments": '{"x": 1}'}
        call = {"id": call_id, "type": "function", "function": function}
        made.messages[1]["tool_calls"] = [call]
        return made

    tree = group_tree([calling("a", 1.0), calling("b", 0.0), rollout(None, said="else")])
    assert not tree.is_of_tokens
    assert tree.ends[0, 0] == tree.ends[1, 0] != tree.ends[2, 0]
    assert tree.messages[tree.vertices[tree.ends[0, 0]].symbols[0]] == 'f {"x": 1} hm 0'
    assert tree.messages[tree.vertices[tree.ends[2, 0]].symbols[0]] == "else 0"


def test_rollouts_without_turns_are_no_path():
    for rollouts, num_vertices in (([], 1), ([rollout()], 1), ([rollout(), ONE], 3)):
        tree = group_tree(rollouts)
        layout = tree_layout(tree, [None] * len(tree.vertices))
        assert (len(tree.vertices), layout.num_lanes) == (num_vertices, 1)


def test_forks_tell_turn_place_and_ways_on():
    views = [RolloutView(rollout=ONE), RolloutView(rollout=TWO)]
    group = GroupView(group_id="g", env_id="e", task_id="t", rollouts=views)
    data = tree_json(group, group_tree([ONE, TWO]), None)
    (fork,) = data["forks"]
    assert (fork["turn"], fork["offset"]) == (0, 2)
    assert sorted(way["text"] for way in fork["ways"]) == ["12", "13"]
    values = {v["rollouts"][0]: v["value"] for v in data["vertices"] if len(v["rollouts"]) == 1}
    assert values == {0: 1.0, 1: 0.0}
    assert data["vertices"][1]["value"] == 0.5
    assert data["vertices"][1]["advantage"] == 0.0
    paths, places = tree_paths(group_tree([ONE, TWO]))
    assert [begin for _, begin in paths[places[1, 0]]] == [0, 2]


def test_rows_are_turns_and_forks_lie_between_them():
    tree = group_tree([ONE, TWO])
    layout = tree_layout(tree, [0.5, 0.5, 0.0, 1.0, 1.0])
    assert layout.rows == [0.0, ROW + FORK_ROW, 2 * ROW + FORK_ROW]
    assert layout.y[1] == FORK_ROW
    assert layout.y[tree.ends[0, 0]] == layout.y[tree.ends[1, 0]] == layout.rows[1]
    assert layout.num_lanes == 2 and layout.x[1] == 0.5


@given(st.integers(0, 10_000))
def test_every_path_of_the_tree_is_the_turn_it_stands_for(seed: int):
    rng = random.Random(seed)
    rollouts = []
    for _ in range(rng.randint(1, 5)):
        records: list[TokenRecord] = []
        wholes: list[list[int]] = []
        for number in range(rng.randint(1, 4)):
            parent = rng.randrange(number) if number else None
            before = wholes[parent] if parent is not None else []
            is_whole = rng.random() < 0.6
            num_shared = len(before) if is_whole else rng.randint(0, len(before))
            prompt = [rng.randrange(3) for _ in range(rng.randint(0, 3))]
            answer = [rng.randrange(3) for _ in range(rng.randint(0, 3))]
            reason = None if is_whole else BranchReason.REWRITE
            records.append(record(parent, num_shared, prompt, answer, branch=reason))
            wholes.append([*before[:num_shared], *prompt, *answer])
        rollouts.append(rollout(*records))
    tree = group_tree(rollouts)
    for (place, turn), end in tree.ends.items():
        path = [s for index in tree.path(place, turn) for s in tree.vertices[index].symbols]
        made = rollouts[place]
        expected = [*made.prompt_ids(turn), *made.turns[turn].tokens.completion_ids]
        assert path == expected
        assert tree.num_prompts[place, turn] == len(made.prompt_ids(turn))
        assert place in tree.vertices[end].rollouts
    for children in tree.children():
        firsts = [tree.vertices[index].symbols[0] for index in children]
        assert len(set(firsts)) == len(firsts)
    layout = tree_layout(tree, [0.0] * len(tree.vertices))
    assert len(set(zip(layout.x, layout.y, strict=True))) == len(tree.vertices)


def test_equal_parts_are_there_once() -> None:
    parts = Parts(None)
    assert [parts.add(["a"]), parts.add(["b"], ["line"]), parts.add(["a"])] == [0, 1, 0]
    assert (parts.parts, parts.heads) == (['["a"]', '["b"]'], [None, ["line"]])


def test_a_part_has_its_line_whatever_use_of_it_comes_first() -> None:
    """A turn whose messages stand in lanes has none, and the last turn has no calls."""
    for uses in ([None, ["", 0, 0]], [["", 0, 0], None]):
        parts = Parts(None)
        assert [parts.add([], head) for head in uses] == [0, 0]
        assert parts.heads == [["", 0, 0]]

"""Where a call belongs in its session's tree, and what its prompt shares."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.messages import Message, assistant, system, user
from katgym.gateway import conversation as module
from katgym.gateway.conversation import CallPlace, Conversation, canonical, hash_chain, hash_text
from katgym.play.rollout import Turn, prompt_messages
from katgym.policies.base import BranchReason, TokenRecord

TOOL = {"type": "function", "function": {"name": "look"}}


def ids_of(messages: Sequence[Message]) -> list[int]:
    """Return a prompt: a marker and the bytes of each message."""
    return [i for m in messages for i in (300, *canonical(m).encode())] + [301]


class Talk:
    """A conversation that is committed to call by call, as the gateway does."""

    def __init__(self) -> None:
        self.tree = Conversation()
        self.turns: list[Turn] = []
        self.nodes: list[TokenRecord] = []

    def call(
        self,
        messages: Sequence[Message],
        answer: Message | str = "ok",
        *,
        tools: Sequence[Any] = (),
        prompt: list[int] | None = None,
        place: CallPlace | None = None,
    ) -> TokenRecord:
        place = place or self.tree.place(messages, tools)
        answer = assistant(answer) if isinstance(answer, str) else answer
        sampled = [*canonical(answer).encode(), 302]
        if prompt is None and place.is_extension:
            new = messages[place.num_shared_messages :]
            prompt = [*place.prompt_ids(), *place.completion_ids(), *ids_of(new)]
        prompt = ids_of(messages) if prompt is None else prompt
        place.share_tokens(prompt)
        shared = place.num_shared_messages
        node = TokenRecord(
            parent=None if place.parent is None else place.parent.index,
            num_shared=place.num_shared,
            prompt_ids=prompt[place.num_shared :],
            completion_ids=sampled,
            policy_logprobs=[-1.0] * len(sampled),
            branch=place.branch,
        )
        turn = Turn(
            num_shared_messages=shared,
            messages=messages[shared:],
            answer=answer,
            tools=tools,
            tokens=node,
        )
        self.tree.commit(place, [turn])
        self.turns.append(turn)
        self.nodes.append(node)
        return node

    def prompt(self, index: int) -> list[int]:
        """Return a node's whole prompt, from what is kept."""
        node = self.nodes[index]
        if node.parent is None:
            return list(node.prompt_ids)
        before = [*self.prompt(node.parent), *self.nodes[node.parent].completion_ids]
        return before[: node.num_shared] + list(node.prompt_ids)


def test_a_call_that_goes_on_keeps_only_what_is_new():
    talk = Talk()
    first = talk.call([system("s"), user("a")], "one")
    second = talk.call([system("s"), user("a"), assistant("one"), user("b")], "two")
    assert (first.parent, first.branch) == (None, None)
    assert (second.parent, second.branch) == (0, None)
    assert second.num_shared == len(first.prompt_ids) + len(first.completion_ids)
    assert list(second.prompt_ids) == ids_of([user("b")])


def test_what_clients_do_to_an_answer_does_not_hide_it():
    talk = Talk()
    talk.call([user("a")], {"role": "assistant", "content": "one", "reasoning_content": "hm"})
    for echoed in (
        {"role": "assistant", "content": " one\n"},
        {"role": "assistant", "content": "one", "reasoning_content": "dropped or kept"},
        {"role": "assistant", "content": "one", "name": "somebody"},
    ):
        assert talk.tree.place([user("a"), echoed, user("b")], []).is_extension, echoed


def test_calls_are_the_same_by_name_and_arguments_not_by_id_or_spacing():
    talk = Talk()
    talk.call([user("a")], assistant("", [("look", {"x": 1, "y": 2})]))
    again = assistant("", [("look", {"y": 2, "x": 1})], prefix="other")
    result: Message = {"role": "tool", "tool_call_id": "other_0", "content": "seen"}
    assert talk.tree.place([user("a"), again, result], []).is_extension
    other = assistant("", [("look", {"y": 3, "x": 1})])
    assert not talk.tree.place([user("a"), other, result], []).is_extension


def test_the_same_prompt_again_shares_all_of_it_and_is_no_branch():
    talk = Talk()
    first = talk.call([user("a")], "one")
    second = talk.call([user("a")], "two")
    third = talk.call([user("a")], "three")
    for node in (second, third):
        assert (node.parent, node.num_shared) == (0, len(first.prompt_ids))
        assert (list(node.prompt_ids), node.branch) == ([], None)
    on = talk.call([user("a"), assistant("two"), user("b")])
    assert on.parent == 1


def test_branches_have_reasons(subtests):
    edited = [system("s"), user("a"), assistant("edited"), user("b"), assistant("two"), user("c")]
    for messages, tools, reason in [
        ([system("other"), user("a")], (), BranchReason.SUB_AGENT),
        ([system("s"), user("a")], (TOOL,), BranchReason.SUB_AGENT),
        ([system("s"), user("summary of it all")], (), BranchReason.COMPACTION),
        ([system("s"), user("a"), assistant("summary"), user("c")], (), BranchReason.COMPACTION),
        (edited, (), BranchReason.REWRITE),
    ]:
        with subtests.test(reason=reason, messages=messages):
            talk = Talk()
            so_far: list[Message] = [system("s"), user("a")]
            for answer, said in (("one", "b"), ("two", "c")):
                talk.call(so_far, answer)
                so_far = [*so_far, assistant(answer), user(said)]
            talk.call(so_far, "three")
            assert talk.call(messages, tools=tools).branch is reason
            assert talk.prompt(3) == ids_of(messages)


def test_an_agent_that_asked_for_a_title_first_is_nobodys_sub_agent():
    talk = Talk()
    talk.call([system("titles"), user("a")], "A title")
    talk.call([system("titles"), user("a")], "Another")
    first = talk.call([system("s"), user("a")], "one", tools=(TOOL,))
    assert (first.parent, first.branch) == (None, None)
    on = talk.call([system("s"), user("a"), assistant("one"), user("b")], tools=(TOOL,))
    assert (on.parent, on.branch) == (2, None)
    helper = talk.call([system("look"), user("x")], tools=(TOOL,))
    assert helper.branch is BranchReason.SUB_AGENT
    assert talk.call([system("titles"), user("b")]).branch is not None


def test_agents_that_start_side_by_side_are_sub_agents():
    talk = Talk()
    talk.call([system("s"), user("a")])
    assert talk.call([system("s"), user("b")]).branch is BranchReason.SUB_AGENT


SUMMARY = "<summary>\nThe user wants to know what stands at place seven.\n</summary>"
CALLS = assistant("", [("look", {"x": 7})])
SEEN: Message = {"role": "tool", "tool_call_id": "c_0", "content": "seven"}


def test_a_conversation_that_is_asked_without_its_tools_is_rewritten():
    talk = Talk()
    talk.call([system("titles"), user("a")], "A title")
    talk.call([system("s"), user("a")], CALLS, tools=(TOOL,))
    asked = talk.call([system("s"), user("a"), CALLS, SEEN, user("Sum it up.")], SUMMARY)
    assert (asked.parent, asked.branch) == (1, BranchReason.REWRITE)


def test_a_prompt_that_quotes_a_summary_is_a_compacted_conversation(subtests):
    turns = [user("a"), assistant("one"), user("b"), assistant("two"), user("c")]
    for kept in (
        [user("Goes on from this: The user wants to know what stands at place seven.")],
        [user("a"), user(f"Another began it.\n{SUMMARY}")],
        [user("What was done?"), assistant(SUMMARY), user("Go on.")],
        [user(SUMMARY), *turns],
    ):
        with subtests.test(kept=kept):
            talk = Talk()
            talk.call([system("s"), user("a")], "one", tools=(TOOL,))
            talk.call([system("You sum up."), user("a: one")], SUMMARY)
            messages = [system("s"), *kept]
            assert talk.call(messages, tools=(TOOL,)).branch is BranchReason.COMPACTION
            restored = Conversation.restore(talk.turns[:2])
            assert restored.place(messages, (TOOL,)).branch is BranchReason.COMPACTION


def test_what_an_agent_starts_while_its_call_waits_is_a_sub_agent_however_short():
    talk = Talk()
    talk.call([system("s"), user("a")], "one")
    talk.call([system("s"), user("a"), assistant("one"), user("b")], CALLS)
    assert talk.call([system("s"), user("look")]).branch is BranchReason.SUB_AGENT
    talk.call([system("s"), user("a"), assistant("one"), user("b"), CALLS, SEEN], "two")
    assert talk.call([system("s"), user("so far")]).branch is BranchReason.COMPACTION


def test_a_prompt_that_was_rendered_otherwise_is_a_branch():
    said = {"role": "assistant", "content": "one"}
    for answer, reason in (
        (said, BranchReason.RETOKENIZED),
        ({**said, "reasoning_content": "hm"}, BranchReason.THINK_STRIPPED),
    ):
        talk = Talk()
        talk.call([user("a")], answer)
        rendered = [*ids_of([user("a")])[:-1], 7, 8, 9]
        node = talk.call([user("a"), assistant("one"), user("b")], prompt=rendered)
        assert (node.branch, node.parent) == (reason, 0)
        assert node.num_shared == len(ids_of([user("a")])) - 1
        assert talk.prompt(1) == rendered


def test_calls_that_overlap_are_siblings_whatever_their_order():
    talk = Talk()
    talk.call([user("a")], "one")
    left = [user("a"), assistant("one"), user("left")]
    right = [user("a"), assistant("one"), user("right")]
    places = [talk.tree.place(left, []), talk.tree.place(right, [])]
    talk.call(right, place=places[1])
    talk.call(left, place=places[0])
    assert [n.parent for n in talk.nodes] == [None, 0, 0]
    assert all(n.branch is None for n in talk.nodes)


def test_several_answers_share_one_prompt():
    tree = Conversation()
    place = tree.place([user("a")], [])
    first = TokenRecord(prompt_ids=[1, 2, 3], completion_ids=[4])
    second = TokenRecord(parent=0, num_shared=3, completion_ids=[5])
    turns = [
        Turn(messages=[user("a")], answer=assistant("x"), tokens=first),
        Turn(num_shared_messages=1, answer=assistant("y"), tokens=second, choice=1),
    ]
    tree.commit(place, turns)
    on = tree.place([user("a"), assistant("y"), user("b")], [])
    assert [*on.prompt_ids(), *on.completion_ids()] == [1, 2, 3, 5]
    on.share_tokens([1, 2, 3, 5, 6])
    assert on.num_shared == 4


@pytest.fixture
def shallow_stack():
    """A stack with room for about 150 frames more."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 150)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("shallow_stack")
def test_very_long_and_very_wide_sessions_need_no_deep_stack():
    talk = Talk()
    messages: list[Message] = [user("a")]
    for turn in range(200):
        talk.call(messages, f"{turn}")
        messages = [*messages, assistant(f"{turn}"), user("b")]
    assert talk.nodes[-1].parent == 198
    for _ in range(200):
        talk.call([user("a")], "x")
    assert talk.nodes[-1].parent == 0


def test_what_was_used_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MAX_TURNS", 4)
    talk = Talk()
    for number in range(8):
        talk.call([user(f"{number}")], f"{number}")
    assert not talk.tree.place([user("0"), assistant("0"), user("x")], []).is_extension
    assert talk.tree.place([user("7"), assistant("7"), user("x")], []).is_extension
    node = talk.call([user("0"), assistant("0"), user("x")])
    assert node.branch is not None
    assert talk.prompt(8) == ids_of([user("0"), assistant("0"), user("x")])


def test_plain_completions_know_their_own_prompt():
    tree = Conversation()
    place = tree.place_text([hash_text("once upon")])
    tokens = TokenRecord(prompt_ids=[1, 2], completion_ids=[3])
    tree.commit(place, [Turn(answer=assistant("a time"), tokens=tokens)])
    assert tree.place_text([hash_text("once upon")]).is_same_prompt
    other = tree.place_text([hash_text([1, 2, 3])])
    other.share_tokens([1, 2, 3, 4])
    assert other.num_shared == 3
    assert other.branch is BranchReason.REWRITE


WORDS = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(st.integers(0, 5), WORDS, WORDS, st.booleans()), max_size=14))
def test_every_prompt_comes_back_whole_and_a_restart_changes_nothing(steps):
    """Random trees: each step goes on from some earlier point, or rewrites it."""
    talk = Talk()
    ends: list[list[Message]] = [[system("s")]]
    asked: list[tuple[list[Message], list[int]]] = []
    for which, said, answer, is_rewrite in steps:
        before = ends[which % len(ends)]
        messages = [*before, user(said)]
        if is_rewrite and len(messages) > 2:
            messages[1] = user("rewritten")
        place = talk.tree.place(messages, [])
        talk.call(messages, answer)
        asked.append((messages, talk.prompt(-1)))
        if not place.is_extension:
            assert asked[-1][1] == ids_of(messages)
        ends.append([*messages, assistant(answer)])
    restored = Conversation.restore(talk.turns)
    assert [prompt_messages(talk.turns, i) for i in range(len(asked))] == [
        messages for messages, _ in asked
    ]
    for end in ends:
        again = [*end, user("next")]
        old, new = talk.tree.place(again, []), restored.place(again, [])
        assert old.is_extension == new.is_extension
        assert (old.num_shared_messages, old.branch) == (new.num_shared_messages, new.branch)
        if old.parent is not None:
            assert old.prompt_ids() == new.prompt_ids()


def test_the_chain_tells_tools_and_every_beginning_apart():
    chain = hash_chain([user("a"), user("b")], [])
    assert len(set(chain)) == 3
    assert chain[:2] == hash_chain([user("a")], [])
    assert chain[0] != hash_chain([], [TOOL])[0]
    assert chain[1:] == hash_chain([user("a"), user("b")], [TOOL])[1:]
    assert hash_chain([user("ab")], [])[1] != hash_chain([user("a"), user("b")], [])[2]

"""Sessions of a token policy: prompts extend sampled ids, branches have reasons, calls errors."""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array

import pytest
from renderers import Qwen3Renderer

import katgym
from katgym.environment.messages import normalize_action
from katgym.errors import ContextLengthError, PolicyError
from katgym.policies.base import Sampling
from katgym.policies.rendering import chat_format
from katgym.policies.rendering.chatml_renderer import ChatMLRenderer
from katgym.policies.rendering.renderer_choice import choose_renderer
from katgym.policies.token_policy import Generated
from katgym.policies.version_span import VersionSpan

END = "<|im_end|>"
KINDS = ("chatml", "qwen3")
USER = {"role": "user", "content": "Find x and y."}
CALLS = (
    '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "search", "arguments": {"query": "y"}}\n</tool_call>' + END
)


def results(*texts):
    return [
        {"role": "tool", "tool_call_id": f"call_0_{i}", "name": "search", "content": text}
        for i, text in enumerate(texts)
    ]


@pytest.fixture
def make_session(tokenizer, qwen_tokenizer, given_answers, context):
    def make(*answers, kind="chatml", **kwargs):
        vocabulary = tokenizer if kind == "chatml" else qwen_tokenizer
        policy = given_answers(vocabulary, choose_renderer(vocabulary, name=kind), answers)
        return policy, policy.start(context(**kwargs))

    return make


def complete(session, messages, max_tokens=500):
    return asyncio.run(session.complete(messages, max_tokens=max_tokens))


def step(session, messages, max_tokens=500):
    """Complete, and append the answer the way the agent loop does."""
    completion = complete(session, messages, max_tokens)
    messages.append(normalize_action(completion.message))
    return completion


def test_later_prompts_extend_the_sampled_tokens(make_session, subtests):
    for kind in KINDS:
        with subtests.test(kind):
            policy, session = make_session(CALLS, "Both found." + END, kind=kind)
            messages = [USER]
            first = step(session, messages)
            calls = first.message["tool_calls"]
            assert [c["id"] for c in calls] == ["call_0_0", "call_0_1"]
            arguments = [json.loads(c["function"]["arguments"]) for c in calls]
            assert arguments == [{"query": "x"}, {"query": "y"}]
            assert first.finish_reason == "tool_calls"
            tokens = first.tokens
            assert (tokens.parent, tokens.num_shared, tokens.branch) == (None, 0, None)
            messages += results("1", "2")
            second = step(session, messages)
            whole = list(tokens.prompt_ids) + list(tokens.completion_ids)
            assert policy.calls[1]["prompt_ids"] == whole + list(second.tokens.prompt_ids)
            assert (second.tokens.parent, second.tokens.num_shared) == (0, len(whole))
            assert second.tokens.branch is None
            assert (second.message["content"], second.finish_reason) == ("Both found.", "stop")
            assert second.num_prompt_tokens == len(policy.calls[1]["prompt_ids"])


def test_odd_sampled_text_is_kept_where_rerendering_would_change_it(make_session, tokenizer):
    odd = '<tool_call>{"arguments":{"query":"x"},   "name":"search"}</tool_call>' + END
    policy, session = make_session(odd, "Done." + END)
    messages = [USER]
    step(session, messages)
    messages += results("1")
    second = step(session, messages)
    assert second.tokens.branch is None
    assert odd in tokenizer.decode(policy.calls[1]["prompt_ids"])


def test_an_answer_that_was_cut_off_is_extended_too(make_session, tokenizer):
    policy, session = make_session("Once upon a time", "Go on." + END)
    messages = [USER]
    first = step(session, messages, max_tokens=4)
    assert (first.message["content"], first.finish_reason) == ("Once", "length")
    messages.append({"role": "user", "content": "?"})
    assert step(session, messages).tokens.branch is None
    assert "Once<|im_end|>\n<|im_start|>user\n?" in tokenizer.decode(policy.calls[1]["prompt_ids"])


def test_an_edited_history_is_a_branch_with_its_reason(make_session, subtests):
    summary = {"role": "user", "content": "Summary: all is well."}
    never = {"role": "assistant", "content": "Never."}
    for edit, reason in (
        (lambda m: [USER, summary], "compaction"),
        (lambda m: [USER, never, *m[2:]], "rewrite"),
        (lambda m: [{"role": "user", "content": "Find z."}, *m[1:]], "rewrite"),
    ):
        with subtests.test(reason):
            policy, session = make_session("A." + END, "B." + END, "C." + END)
            messages = [USER]
            step(session, messages)
            messages.append({"role": "user", "content": "More."})
            step(session, messages)
            third = complete(session, edit(messages))
            before, ids = policy.calls[1]["prompt_ids"], policy.calls[2]["prompt_ids"]
            shared = third.tokens.num_shared
            assert (str(third.tokens.branch), third.tokens.parent) == (reason, 1)
            assert before[:shared] == ids[:shared]
            assert before[shared] != ids[shared]
            assert list(third.tokens.prompt_ids) == ids[shared:]


def test_a_history_changed_in_place_is_seen(make_session):
    _, session = make_session("A." + END, "B." + END)
    messages = [dict(USER)]
    step(session, messages)
    messages[0]["content"] = "Find something else."
    messages.append({"role": "user", "content": "More."})
    assert str(complete(session, messages).tokens.branch) == "rewrite"


def test_stripped_thinking_is_a_branch_of_its_own_reason(make_session):
    _, session = make_session("<think>\nHm.\n</think>\n\nA." + END, "B." + END, kind="qwen3")
    messages = [USER]
    first = step(session, messages)
    assert (first.message["reasoning_content"].strip(), first.message["content"]) == ("Hm.", "A.")
    messages.append({"role": "user", "content": "More."})
    second = complete(session, messages)
    assert str(second.tokens.branch) == "think_stripped"
    assert second.tokens.num_shared > 0


def test_a_template_that_cannot_be_bridged_is_retokenized(make_session):
    odd = "A.  " + END + "x"  # what follows the stop token is not in the template
    _, session = make_session(odd, "B." + END)
    messages = [USER]
    step(session, messages)
    messages.append({"role": "user", "content": "More."})
    assert str(complete(session, messages).tokens.branch) == "retokenized"


def test_branches_become_trajectories_of_their_own(tokenizer, given_answers):
    class Talk(katgym.Env):
        def load_tasks(self, split):
            return [katgym.Task(task_id="a", prompt="Hi.")]

        def reply(self, message):
            return "More." if self.num_turns < 3 else None

    policy = given_answers(
        tokenizer, choose_renderer(tokenizer), ["A." + END, "B." + END, "C." + END]
    )
    rollout = asyncio.run(katgym.run_rollout(Talk(), policy, seed=0))
    (path,) = rollout.trajectories()
    assert tokenizer.decode(path.token_ids).endswith("assistant\nC.<|im_end|>")
    assert sum(path.loss_mask) == 3 * len(tokenizer.encode("A." + END))


BROKEN = {
    '<tool_call>{"name": "search", "arguments": {</tool_call>': "not valid JSON (Expecting",
    '<tool_call>{"name": "search", "arguments": {}}': "was not closed",
    '<tool_call>{"arguments": {}}</tool_call>': "names no tool",
    '{"name": "search", "arguments": {"query": "x"}}': "written as plain JSON",
    '```json\n[{"name": "search", "arguments": {}}]\n```': "written as plain JSON",
    "<tool_call>" + "[" * 100_000 + "</tool_call>": "",
}


def test_a_broken_call_is_a_call_with_an_error(make_session, subtests):
    for (answer, error), kind in itertools.product(BROKEN.items(), KINDS):
        with subtests.test(answer[:50], kind=kind):
            _, session = make_session(answer + END, kind=kind, max_context_tokens=None)
            session._max_context_tokens = 200_000
            message = complete(session, [USER], max_tokens=190_000).message
            (call,) = message["tool_calls"]
            assert error in call["error"] and 0 < len(call["error"]) < 500
            assert call["id"] == "call_0_0"


def test_a_broken_call_keeps_its_place_among_good_ones(make_session):
    good = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
    _, session = make_session(good + "<tool_call>oops</tool_call>" + good + END)
    calls = complete(session, [USER]).message["tool_calls"]
    assert ["error" in call for call in calls] == [False, True, False]
    assert calls[1]["function"]["arguments"] == "oops"


def test_ordinary_json_is_no_call(make_session):
    texts = (
        '{"name": "other", "arguments": {}}',
        '{"answer": 4}',
        'Say {"name": "search", "arguments": {}} to me.',
        "[]",
        "```json\n{}\n```",
        "4",
    )
    for text in texts:
        _, session = make_session(text + END)
        assert complete(session, [USER]).message == {"role": "assistant", "content": text}


def test_calls_are_left_to_the_scheduler_as_they_are(make_session):
    surrogate = '{"name": "serch", "arguments": {"query": "\\ud83d"}}'
    _, session = make_session(f"<tool_call>{surrogate}</tool_call>" + END)
    (call,) = complete(session, [USER]).message["tool_calls"]
    assert "error" not in call and call["function"] == {
        "name": "serch", "arguments": '{"query": "\\ud83d"}'
    }  # fmt: skip
    _, session = make_session(CALLS, has_tools=False)
    assert "tool_calls" not in complete(session, [USER]).message


def test_a_broken_call_survives_a_full_render(make_session, tokenizer):
    policy, session = make_session("<tool_call>oops</tool_call>" + END, "B." + END)
    messages = [USER]
    step(session, messages)
    messages[0] = {"role": "user", "content": "Other."}
    messages += results("could not be read")
    assert str(complete(session, messages).tokens.branch) == "rewrite"
    assert "assistant\noops<|im_end|>" in tokenizer.decode(policy.calls[1]["prompt_ids"])


def test_max_tokens_is_cut_to_the_room_that_is_left(make_session):
    policy, session = make_session("Hello" * 20)
    prompt = policy.renderer.render_ids([USER], tools=session._tools, add_generation_prompt=True)
    session._max_context_tokens = len(prompt) + 3
    completion = complete(session, [USER])
    assert policy.calls[0]["max_tokens"] == completion.num_completion_tokens == 3
    policy, session = make_session("x", max_context_tokens=30)
    with pytest.raises(ContextLengthError, match="at most 29 fit"):
        complete(session, [USER])
    assert policy.calls == []


def test_every_turn_has_its_own_seed_and_the_same_session(make_session):
    policy, session = make_session("A." + END, "B." + END, sampling=Sampling(temperature=0.5))
    messages = [USER]
    step(session, messages)
    messages.append(USER)
    step(session, messages)
    seeds = [call["seed"] for call in policy.calls]
    assert len(set(seeds)) == 2 and None not in seeds
    assert len({call["session_id"] for call in policy.calls}) == 1
    assert policy.calls[0]["sampling"].temperature == 0.5


def test_a_failed_call_leaves_the_session_usable(make_session):
    policy, session = make_session(PolicyError("down"), "A." + END)
    with pytest.raises(PolicyError, match="down"):
        complete(session, [USER])
    assert complete(session, [USER]).tokens.parent is None
    assert policy.calls[0]["prompt_ids"] == policy.calls[1]["prompt_ids"]


UNUSABLE = [
    ([], [], "policy_bad_response", "no token at all"),
    ([1, 2], [], "policy_no_logprobs", "2 tokens without log-probabilities"),
    ([1, 2], [-1.0], "policy_bad_response", "1 log-probabilities for 2 tokens"),
    ([1], [float("nan")], "policy_bad_response", "log-probability nan"),
    ([1], [None], "policy_bad_response", "log-probability None"),
    ([1], [2.0], "policy_bad_response", "log-probability 2.0"),
    ([99_999], [-1.0], "policy_bad_response", "token id 99999"),
    ([-1], [-1.0], "policy_bad_response", "token id -1"),
    (["a"], [-1.0], "policy_bad_response", "token id 'a'"),
    ([1] * 600, [-1.0] * 600, "policy_bad_response", "600 tokens where at most 500"),
]


def test_unusable_tokens_are_refused(make_session, subtests):
    for ids, logprobs, kind, text in UNUSABLE:
        with subtests.test(text):
            _, session = make_session(Generated(token_ids=ids, policy_logprobs=logprobs))
            with pytest.raises(PolicyError, match=text) as caught:
                complete(session, [USER])
            assert caught.value.kind == kind


def test_spans_reach_the_record_and_have_to_cover_what_was_sampled(make_session):
    spans = [VersionSpan(version=4, start=0, end=1), VersionSpan(version=5, start=1, end=2)]
    _, session = make_session(
        Generated(token_ids=[1, 2], policy_logprobs=[-1.0, -2.0], version_spans=spans),
        Generated(token_ids=[1, 2], policy_logprobs=[-1.0, -2.0], version_spans=spans[:1]),
    )
    record = complete(session, [USER]).tokens
    assert (record.version_spans, record.policy_version) == (tuple(spans), 4)
    with pytest.raises(PolicyError, match=r"answered version spans .* has to end at 2") as caught:
        complete(session, [USER])
    assert caught.value.kind == "policy_bad_response"


def test_a_conversation_the_template_refuses_is_rejected(make_session, monkeypatch):
    policy, session = make_session("x")

    def refuse(*args, **kwargs):
        raise ValueError("no system role here")

    monkeypatch.setattr(policy.renderer, "render_ids", refuse)
    with pytest.raises(PolicyError, match="no system role here") as caught:
        complete(session, [USER])
    assert caught.value.kind == "policy_rejected"


def test_a_bridge_needs_no_more_than_the_last_turn(qwen_tokenizer):
    """Renderers that are told to look at the last turn alone get the same from all of it."""
    tokenizer = qwen_tokenizer
    history = [{"role": "user", "content": f"Question {i}?"} for i in range(5)]
    new = [{"role": "tool", "tool_call_id": "x", "content": "a wall"}]
    for renderer in (ChatMLRenderer, Qwen3Renderer):
        assert renderer.__name__ in chat_format._LOOK_AT_LAST_TURN
        made = chat_format.ChatFormat(renderer(tokenizer), tokenizer, "tiny")
        for start in ("", "<think>\n"):
            prompt = [*made.render(history, None), *tokenizer.encode(start)]
            for answer in (
                "Well.<|im_end|>",
                "Well, <think>then",
                "so.\n</think>\n\nYes<|im_end|>",
            ):
                ids = tokenizer.encode(answer)
                whole = made.renderer.bridge_to_next_turn(prompt, ids, new)
                found = made.bridge(prompt, ids, new, None)
                expected = None if whole is None else list(whole.token_ids)
                assert found is None or found == expected
                assert (found is None) == (
                    expected is None or expected[: len(prompt + ids)] != prompt + ids
                )
                packed = made.bridge(array("i", prompt), array("i", ids), new, None)
                assert (packed and packed.tolist()) == found
                said = made.renderer.parse_response(ids, prompt_ids=prompt)
                parsed = made.parse(ids, prompt_ids=prompt, tools=None, id_prefix="c")
                assert parsed["content"] == (said.content or "")
                assert parsed.get("reasoning_content", "") == (said.reasoning_content or "")

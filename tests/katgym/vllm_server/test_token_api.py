"""Bodies and answers of both token routes, and what an answer that cannot be used says."""

from __future__ import annotations

from typing import Any

import pytest

from katgym.errors import PolicyError, UsageError
from katgym.policies.base import Sampling
from katgym.policies.version_span import VersionSpan, one_span
from katgym.vllm_server.token_api import (
    EventMerger,
    SampledTokens,
    TokenRequest,
    completions_body,
    generate_body,
    parse_completions,
    parse_generate,
    parse_scores,
    score_body,
    top_logprob,
)

PLAIN = TokenRequest(model="tiny", prompt_ids=(5, 6), max_tokens=8)
FULL = TokenRequest(
    model="adapter",
    prompt_ids=[5],
    max_tokens=3,
    sampling=Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=99),
    seed=0,
    num_completions=4,
    stop=["\n"],
    stop_token_ids=[2],
    num_top_logprobs=1,
    cache_salt="v7",
)


def test_a_plain_request_leaves_out_what_it_does_not_ask():
    assert generate_body(PLAIN) == {
        "model": "tiny",
        "token_ids": [5, 6],
        "sampling_params": {
            "max_tokens": 8,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": [],
            "skip_special_tokens": False,
            "logprobs": 0,
            "detokenize": False,
        },
    }
    body = completions_body(PLAIN)
    assert (body["prompt"], body["return_token_ids"], body["logprobs"]) == ([5, 6], True, 0)
    assert not {"n", "seed", "stop", "cache_salt", "token_ids"} & body.keys()
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)


def test_both_routes_get_all_that_is_asked():
    generate, completions = generate_body(FULL), completions_body(FULL)
    params = generate["sampling_params"]
    for body in (params, completions):
        assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.9, 7)
        assert (body["max_tokens"], body["seed"], body["n"]) == (3, 0, 4)
        assert (body["stop"], body["stop_token_ids"]) == (["\n"], [2])
    assert (params["logprobs"], completions["logprobs"]) == (2, 1)
    assert params["detokenize"] is True
    assert generate["model"] == completions["model"] == "adapter"
    assert generate["cache_salt"] == completions["cache_salt"] == "v7"


def test_a_request_that_cannot_work_is_refused():
    for wrong, text in (
        ({"prompt_ids": []}, "at least one prompt token"),
        ({"max_tokens": 0}, "max_tokens is >= 1, got 0"),
        ({"num_completions": 0}, "num_completions is >= 1, got 0"),
    ):
        with pytest.raises(UsageError, match=text):
            TokenRequest(**{"model": "m", "prompt_ids": [1], "max_tokens": 1, **wrong})


def generated(index=0, **changes):
    choice = {
        "index": index,
        "token_ids": [7, 8],
        "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -1}]},
        "finish_reason": "length",
        "weight_versions": [
            {"version": "3", "start": 0, "end": 1},
            {"version": "4", "start": 1, "end": 2},
        ],
    }
    return {**choice, **changes}


def test_generate_answers_ids_logprobs_and_versions():
    assert parse_generate({"choices": [generated()]}) == [
        SampledTokens(
            token_ids=[7, 8],
            policy_logprobs=[-0.5, -1],
            finish_reason="length",
            version_spans=(
                VersionSpan(version=3, start=0, end=1),
                VersionSpan(version=4, start=1, end=2),
            ),
        )
    ]


def test_several_completions_come_in_order():
    answer = {"choices": [generated(1, token_ids=[1, 1]), generated(0, token_ids=[0, 0])]}
    assert [sampled.token_ids for sampled in parse_generate(answer)] == [[0, 0], [1, 1]]
    choice = {"finish_reason": "stop", "logprobs": {"token_logprobs": [-1.0]}}
    answer = {"choices": [{**choice, "index": 1, "token_ids": [1]}, {**choice, "token_ids": [0]}]}
    found = parse_completions(answer)
    assert [sampled.token_ids for sampled in found] == [[0], [1]]
    assert found[0] == SampledTokens(token_ids=[0], policy_logprobs=[-1.0], finish_reason="stop")


def span(label, start, end):
    return {"version": label, "start": start, "end": end}


def test_labels_become_versions():
    """Those that are no numbers the caller's; weights that sampled nothing none."""
    both = (VersionSpan(version=6, start=0, end=1), VersionSpan(version=7, start=1, end=2))
    mixed = [span("default", 0, 1), span("7", 1, 2)]
    for told, version, expected in (
        (None, None, ()),
        (None, 6, one_span(6, 2)),
        ([span("default", 0, 2)], None, ()),
        (mixed, None, ()),
        (mixed, 6, both),
        ([span("6", 0, 0), span("7", 0, 2), span("8", 2, 2)], 5, one_span(7, 2)),
    ):
        answer = {"choices": [generated(weight_versions=told)]}
        (sampled,) = parse_generate(answer, version=version)
        assert (sampled.version_spans, sampled.is_verified) == (expected, True), told
    plain = {"choices": [{"token_ids": [7, 8], "finish_reason": "stop", "logprobs": None}]}
    assert parse_completions(plain)[0].version_spans == ()
    assert parse_completions(plain, version=6)[0].version_spans == one_span(6, 2)
    # Weights that did not arrive are told apart, and an aborted completion says so.
    lost = [span("7", 0, 1), span("unverified", 1, 2)]
    (sampled,) = parse_generate(
        {"choices": [generated(weight_versions=lost, finish_reason="abort")]}
    )
    assert (sampled.is_verified, sampled.finish_reason) == (False, "abort")


def test_an_answer_that_cannot_be_used_names_what_is_missing(subtests):
    infinite = {"content": [{"logprob": -1.0}, {"logprob": -9999.0}]}
    bad, none = "policy_bad_response", "policy_no_logprobs"
    for choices, text, kind in (
        ([], "the answer has no choices", bad),
        (["x"], "the answer has no", bad),
        ([{"logprobs": None}], "'token_ids'.*0.10.2", bad),
        ([generated(token_ids="x")], "token_ids and", bad),
        ([generated(weight_versions=[{"version": "1"}])], "the answer has no 'start'", bad),
        ([generated(weight_versions=[span("1", 0, 3)])], "weight_versions end at 3: .* at 2", bad),
        ([generated(logprobs=infinite)], "token 1 of 2 was sampled without a finite log-pro", none),
    ):
        with subtests.test(text=text):
            with pytest.raises(PolicyError, match=f"(?s)^server 1: .*{text}") as caught:
                parse_generate({"choices": choices}, source="server 1")
            assert caught.value.kind == kind
    for answer, text in (([1], "the answer has no"), ({}, "the answer has no 'choices'")):
        with pytest.raises(PolicyError, match=f"(?s)^server 1: .*{text}") as caught:
            parse_generate(answer, source="server 1")
        assert caught.value.kind == bad


def test_the_likeliest_token_is_read_from_both_shapes():
    content = [{"top_logprobs": [{"logprob": -2.0}, {"logprob": -0.5}]}]
    assert top_logprob({"choices": [{"logprobs": {"content": content}}]}) == -0.5
    assert top_logprob({"choices": [{"logprobs": {"top_logprobs": [{"a": -3.0}]}}]}) == -3.0
    with pytest.raises(PolicyError, match="no top_logprobs"):
        top_logprob({"choices": [{"logprobs": None}]})


def test_given_tokens_are_scored():
    assert score_body("tiny", [5, 6, 7])["prompt_logprobs"] == 0
    rows = [None, {"6": {"logprob": -1.5}, "9": {"logprob": -0.1}}, {"7": {"logprob": -2}}]
    answer = {"choices": [{"prompt_logprobs": rows}]}
    assert parse_scores(answer, [5, 6, 7]) == [-1.5, -2.0]
    for tokens in ([5, 6], [5, 6, 8]):
        with pytest.raises(PolicyError, match="no prompt_logprobs for"):
            parse_scores(answer, tokens)


def test_events_add_up_to_the_answer_that_they_are_parts_of() -> None:
    merger = EventMerger(source="it")
    for ids, reason in (([5], None), ([], None), ([6, 7], "stop")):
        entries = [{"token_id": i, "logprob": -i / 8} for i in ids]
        spans = [{"version": "4", "start": 0, "end": 3}] if reason else None
        part = {"index": 1, "token_ids": ids, "logprobs": {"content": entries}}
        merger.add({"choices": [part | {"finish_reason": reason, "weight_versions": spans}]})
    merger.add({"choices": [], "usage": {"completion_tokens": 3}})
    (sampled,) = parse_generate(merger.answer())
    assert sampled.token_ids == [5, 6, 7]
    assert sampled.policy_logprobs == [-0.625, -0.75, -0.875]
    assert sampled.finish_reason == "stop"
    assert sampled.version_spans == one_span(4, 3)


def test_an_event_that_is_no_part_of_an_answer_changes_nothing(subtests: pytest.Subtests) -> None:
    def logprobs(*values: float | None) -> dict[str, Any]:
        return {"logprobs": {"token_logprobs": list(values)}}

    choices: tuple[Any, ...] = (
        {"index": 0},
        {"index": "x", "token_ids": [1], "logprobs": None},
        {"index": 0, "token_ids": [1], "logprobs": None},
        {"token_ids": [-1], **logprobs(-1.0)},
        {"token_ids": ["a"], **logprobs(-1.0)},
        {"token_ids": [1], **logprobs(None)},
        {"token_ids": [1, 2], **logprobs(-1.0)},
    )
    for event in (None, [], {}, *({"choices": [choice]} for choice in choices)):
        with subtests.test(event=event):
            merger = EventMerger(source="it")
            with pytest.raises(PolicyError, match="it: the answer has no"):
                merger.add(event)
            assert merger.choices == {}

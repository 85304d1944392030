"""Expert routes on their way from a server into a rollout's record.

Not here: vLLM itself (`tests/trainer/test_routes_vllm.py`); what a trainer makes of them
(`tests/trainer/test_routing_replay.py`).
"""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import pytest

from katgym.errors import PolicyError, UsageError
from katgym.policies.base import EpisodeContext, TokenRecord
from katgym.policies.endpoints.http_retry import HttpClient
from katgym.policies.endpoints.vllm_client import VllmConfig, VllmPolicy
from katgym.policies.expert_routes import cut_routes, read_routes, write_routes


def routes_of(num_tokens, start=0):
    """Return routes of 2 layers and 2 experts, in which each token's first expert is its place."""
    places = np.arange(start, start + num_tokens)
    return np.stack([places, places + 1, places * 0, places * 0 + 3], 1).reshape(-1, 2, 2)


def test_they_are_as_small_as_their_experts_let_them_be():
    small, large = routes_of(3), routes_of(3) + 300
    assert read_routes(write_routes(small)).dtype == np.uint8
    assert read_routes(write_routes(large)).dtype == np.uint16
    assert (read_routes(write_routes(large)) == large).all()
    assert len(write_routes(routes_of(100))) == 100 * 4 + 128


def test_vllms_other_types_are_read():
    file = write_routes(routes_of(3)).replace(b"'|u1'", b"'<i4'")
    data = file[:128] + routes_of(3).astype("<i4").tobytes()
    assert read_routes(data).dtype == np.uint16
    assert (read_routes(data) == routes_of(3)).all()


def test_what_is_no_routes_is_refused(subtests):
    routes = write_routes(routes_of(3))
    for data, words in {
        b"x": "cannot read expert routes",
        routes[:-1]: r"cannot read expert routes: .*\[tokens, layers",
        routes.replace(b"'|u1'", b"'<f8'"): "got float64 of shape",
        routes.replace(b"(3, 2, 2)", b"(12,)    "): r"of shape \(12,\)",
        routes.replace(b"NUMPY\x01", b"NUMPY\x02"): "version 1.0 of .npy",
    }.items():
        with subtests.test(words), pytest.raises(UsageError, match=words):
            read_routes(data)
    for wrong in ([[1, 2]], [[[-1]]], [[[0.5]]]):
        with subtests.test(wrong=wrong), pytest.raises(UsageError, match="integers from 0"):
            write_routes(wrong)


def test_a_record_keeps_those_of_its_own_tokens_and_the_one_before():
    data = write_routes(routes_of(9))
    assert cut_routes(b"", num_shared=4, num_tokens=10) == b""
    assert cut_routes(data, num_shared=0, num_tokens=10) is data
    kept = cut_routes(data, num_shared=4, num_tokens=10)
    assert read_routes(kept)[:, 0, 0].tolist() == [3, 4, 5, 6, 7, 8]
    record = {"parent": 0, "num_shared": 4, "prompt_ids": [1], "completion_ids": [2] * 5}
    assert TokenRecord(**record, routes=kept).routes == kept
    with pytest.raises(UsageError, match="cut_routes leaves them out"):
        TokenRecord(**record, routes=data)
    for num_tokens in (8, 16):
        with pytest.raises(UsageError, match=f"of 9 tokens where {num_tokens} were read"):
            cut_routes(data, num_shared=4, num_tokens=num_tokens)


def answer(ids, routes):
    told = routes if isinstance(routes, str) else base64.b64encode(write_routes(routes)).decode()
    logprobs = {"token_logprobs": [-0.5] * len(ids)}
    choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": logprobs}
    return {"choices": [{**choice, "routed_experts": told}]}


def play(server, tokenizer, script, num_turns):
    """Play turns against a server that answers by script; return the records of tokens."""
    http = HttpClient(base_url=server.url)
    policy = VllmPolicy(http, "tiny", tokenizer, name="vllm:test", config=VllmConfig())
    policy.max_context_tokens = 1000

    async def run():
        messages, found = [{"role": "user", "content": "hi"}], []
        session = policy.start(EpisodeContext(env=None))
        try:
            for number in range(num_turns):
                server.script = [(200, script(number))]
                completion = await session.complete(messages, max_tokens=8)
                found.append(completion.tokens)
                messages += [completion.message, {"role": "user", "content": "more"}]
        finally:
            await session.aclose()
            await policy.aclose()
        return found

    found = asyncio.run(run())
    assert not policy._told
    return found


def test_a_session_asks_for_what_nobody_told_yet(server, tokenizer):
    end = tokenizer.encode("<|im_end|>")
    ids = [[*tokenizer.encode("one"), *end], [*tokenizer.encode("two"), *end]]
    # The prompts' lengths are known once they are rendered: by a first try without routes.
    plain = play(server, tokenizer, lambda number: answer(ids[number], ""), 2)
    assert all(record.routes == b"" for record in plain)
    first, second = plain
    length = len(first.prompt_ids) + len(ids[0])
    totals = [length, length + len(second.prompt_ids) + len(ids[1])]
    for starts in (
        [0, length - 1],
        [0, 0],
    ):  # a server that does as it is asked, and one that tells all

        def script(number, starts=starts):
            routes = routes_of(totals[number] - 1 - starts[number], starts[number])
            return answer(ids[number], routes)

        server.requests.clear()
        told = play(server, tokenizer, script, 2)
        bodies = [body for _, body, _ in server.requests]
        assert "routed_experts_prompt_start" not in bodies[0]
        assert bodies[1]["routed_experts_prompt_start"] == length - 1
        places = [read_routes(record.routes)[:, 0, 0].tolist() for record in told]
        assert places[0] == list(range(length - 1))
        assert places[1] == list(range(length - 1, totals[1] - 1))
    assert second.num_shared == length


def test_a_server_that_tells_others_is_refused(server, tokenizer):
    ids = tokenizer.encode("a<|im_end|>")
    for routes, words in (
        ("?", "routed_experts is no base64"),
        (routes_of(2), "expert routes of 2 tokens where"),
    ):
        reply = answer(ids, routes)
        with pytest.raises(PolicyError, match=words) as caught:
            play(server, tokenizer, lambda _, reply=reply: reply, 1)
        assert caught.value.kind == "policy_bad_response"

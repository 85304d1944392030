"""New weights for the transformers policy while requests run: exact spans, order, failures."""

from __future__ import annotations

import asyncio

import pytest
import torch
from plain_rollout import plain_rollout
from waiting import wait_until_async

from katgym.environment.messages import user
from katgym.play.rollout import Turn
from katgym.policies.base import Sampling
from katgym.policies.hf.hf_policy import HfConfig, HfPolicy
from katgym.policies.version_span import VersionSpan, one_span
from katgym.rollout_store import RolloutStore, record_rollout, rollouts

PROMPT = list(range(10, 73))


@pytest.fixture
def policy(model, tokenizer):
    """Prefills so little at once that paused requests come back over several rounds."""
    made = HfPolicy(model, tokenizer, config=HfConfig(max_prefill_tokens=70, max_batch_size=5))
    made.stop_ids = frozenset()
    yield made
    made.engine.close()


@pytest.fixture
def head(model):
    """The weight the tests change; put back afterwards."""
    weight = model.lm_head.weight
    saved = weight.detach().clone()
    yield weight
    weight.data.copy_(saved)


def generate(policy, prompt, *, seed=0, max_tokens=20, session_id="s"):
    return policy.generate(
        prompt, sampling=Sampling(), max_tokens=max_tokens, seed=seed, session_id=session_id
    )


async def begin_updates(policy, *updates):
    """Ask for updates, while the policy is held; return what is to be awaited when it goes on."""
    asked = asyncio.gather(*(policy.update_weights(fn, **options) for fn, options in updates))
    await wait_until_async(lambda: len(policy.engine._updates) == len(updates), "the updates")
    return asked


def full_logprobs(model, prompt, generated):
    ids = torch.tensor([prompt + list(generated.token_ids)])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1)
    return logprobs.gather(1, torch.tensor(generated.token_ids)[:, None])[:, 0]


def test_an_immediate_update_splits_running_requests_into_exact_spans(
    policy, model, head, held_after
):
    prompts = [PROMPT, PROMPT, PROMPT[:17], PROMPT[5:], PROMPT]

    async def run():
        tasks = [
            asyncio.create_task(generate(policy, p, seed=i, session_id=str(i), max_tokens=40))
            for i, p in enumerate(prompts)
        ]
        async with held_after(policy, 60):
            change = (lambda: head.data.mul_(0.5), {"policy_version": 7, "is_immediate": True})
            updates = await begin_updates(policy, change)
        await updates
        return await asyncio.gather(*tasks)

    old = head.detach().clone()
    results = asyncio.run(run())
    new = head.detach().clone()
    for prompt, result in zip(prompts, results, strict=True):
        assert (len(result.token_ids), result.policy_version) == (40, 0)
        first, second = result.version_spans
        assert (first.version, first.start, second.version, second.end) == (0, 0, 7, 40)
        assert 0 < first.end == second.start < 40
        recorded = torch.tensor(result.policy_logprobs)
        for weight, span in ((old, first), (new, second)):
            head.data.copy_(weight)
            found = full_logprobs(model, prompt, result)
            piece = slice(span.start, span.end)
            assert (found - recorded)[piece].abs().max() <= 1e-4
            other = slice(second.start, 40) if span is first else slice(0, first.end)
            assert (found - recorded)[other].abs().max() > 1e-2


def test_a_turns_record_tells_the_token_before_which_the_weights_changed(
    policy, context, tmp_path, held_after
):
    """From the engine through a session's turn and the store, back to what a learner reads."""
    sampled_before = []

    def change():  # called in the engine's thread, with the request that runs set aside
        sampled_before.extend(len(request.logprobs) for request in policy.engine._paused)

    async def run():
        session = policy.start(context(seed=1))
        asked = asyncio.create_task(session.complete([user("hi")], max_tokens=40))
        async with held_after(policy, 10):
            now = {"policy_version": 3, "is_immediate": True}
            updates = await begin_updates(policy, (change, now))
        await updates
        return await asked

    completion = asyncio.run(run())
    (num_before,) = sampled_before
    expected = (
        VersionSpan(version=0, start=0, end=num_before),
        VersionSpan(version=3, start=num_before, end=40),
    )
    assert (completion.tokens.version_spans, completion.tokens.policy_version) == (expected, 0)
    with RolloutStore.open(tmp_path) as store:
        record_rollout(store, rollout_of(completion))
        for _ in range(2):  # live, then sealed
            (turn,) = rollouts(store, "e").turns
            assert turn.tokens.version_spans == expected
            store.seal()


def rollout_of(completion):
    """Return a rollout of one turn."""
    turn = Turn(
        messages=[user("hi")],
        answer=completion.message,
        finish_reason=completion.finish_reason,
        tokens=completion.tokens,
        num_prompt_tokens=completion.num_prompt_tokens,
        num_completion_tokens=completion.num_completion_tokens,
    )
    return plain_rollout(turns=[turn])


@pytest.mark.slow
def test_an_immediate_update_without_a_change_changes_no_token(policy, held_after):
    async def run(is_updated):
        task = asyncio.create_task(generate(policy, PROMPT, seed=3, max_tokens=200))
        if is_updated:
            async with held_after(policy, policy.engine.batch.num_decoded + 20):
                now = {"policy_version": 0, "is_immediate": True}
                updates = await begin_updates(policy, (lambda: None, now))
            await updates
        return await task

    plain, updated = asyncio.run(run(False)), asyncio.run(run(True))
    assert updated.token_ids == plain.token_ids
    assert updated.version_spans == one_span(0, 200)  # the weights are called the same


def test_updates_are_made_in_order_and_one_that_waits_sees_the_request_end(
    policy, head, held_after
):
    async def run():
        running = asyncio.create_task(generate(policy, PROMPT, max_tokens=40))
        versions = []
        changes = [
            (
                lambda v=version: versions.append((v, len(policy.engine._paused))),
                {"policy_version": version, "is_immediate": is_immediate},
            )
            for version, is_immediate in ((1, True), (2, True), (3, False), (4, True))
        ]
        async with held_after(policy, 10):
            updates = await begin_updates(policy, *changes)
            later = asyncio.create_task(generate(policy, PROMPT, session_id="later"))
            await wait_until_async(lambda: policy.engine._waiting, "the later request")
        await updates
        return versions, await running, await later

    versions, running, later = asyncio.run(run())
    assert versions == [(1, 1), (2, 1), (3, 0), (4, 0)]  # and how many requests were set aside
    assert [span.version for span in running.version_spans] == [0, 2]
    assert running.version_spans[-1].end == 40
    assert later.version_spans == one_span(4, 20)


def test_weights_that_sampled_nothing_have_no_span(policy, held_after):
    async def run():
        task = asyncio.create_task(generate(policy, PROMPT, max_tokens=40))
        changes = [
            (lambda: None, {"policy_version": version, "is_immediate": True}) for version in (5, 6)
        ]
        async with held_after(policy, 10):
            updates = await begin_updates(policy, *changes)
        await updates
        return await task

    result = asyncio.run(run())
    covered = [token for span in result.version_spans for token in range(span.start, span.end)]
    assert covered == list(range(40))
    assert [span.version for span in result.version_spans] == [0, 6]
    assert all(span.start < span.end for span in result.version_spans)


def test_a_failing_immediate_update_reaches_its_caller_and_requests_go_on(
    policy, model, held_after
):
    async def run():
        task = asyncio.create_task(generate(policy, PROMPT, max_tokens=40))
        async with held_after(policy, 10):
            now = {"policy_version": 1, "is_immediate": True}
            updates = await begin_updates(policy, (lambda: 1 // 0, now))
        with pytest.raises(ZeroDivisionError):
            await updates
        return await task

    result = asyncio.run(run())
    assert (len(result.token_ids), result.policy_version) == (40, 0)
    found = full_logprobs(model, PROMPT, result)
    assert (found - torch.tensor(result.policy_logprobs)).abs().max() <= 1e-4


def test_a_request_cancelled_around_an_immediate_update_is_dropped(policy, held_after):
    async def run():
        tasks = [
            asyncio.create_task(generate(policy, PROMPT, session_id=str(i), max_tokens=100_000))
            for i in range(3)
        ]
        async with held_after(policy, 10):
            now = {"policy_version": 1, "is_immediate": True}
            updates = await begin_updates(policy, (lambda: None, now))
            for task in tasks:
                task.cancel()
        await updates
        await asyncio.gather(*tasks, return_exceptions=True)
        return await generate(policy, PROMPT, max_tokens=3)

    result = asyncio.run(run())
    assert (len(result.token_ids), result.policy_version) == (3, 1)

"""Answers as they are kept: turns made of a reply, and a reply made of turns again.

Not here: when they are written (`gateway.py`); the tree they stand in (`conversation.py`).
"""

from __future__ import annotations

from dataclasses import replace

from katgym.environment.messages import assistant
from katgym.gateway.call import Answer, CallContext, Dialect, Reply, Served
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.play.rollout import Turn
from katgym.policies.base import TokenRecord
from katgym.policies.expert_routes import cut_routes
from katgym.policies.sampling_constraint import find_constraint
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.records import FailedCall
from katgym.rollout_store.rollouts import as_rollout


def make_servable(answer: Answer, api: Dialect) -> Answer:
    """Return an answer as its API can say it."""
    message = api.servable(answer.message)
    if message is answer.message:
        return answer
    is_tool_less = answer.finish_reason == "tool_calls" and not message.get("tool_calls")
    reason = "stop" if is_tool_less else answer.finish_reason
    return replace(answer, message=message, finish_reason=reason)


def describe_invalid_tool_calls(context: CallContext, reply: Reply) -> list[FailedCall]:
    """Return a record for each tool call that the model wrote wrongly; its text is served."""
    return [
        FailedCall(
            call_id=context.call_id,
            route=context.call.route,
            status=200,
            kind="invalid_tool_call",
            reason=asked["error"][:1000],
            received_s=context.received_s,
        )
        for answer in reply.answers
        for asked in answer.message.get("tool_calls", ())
        if "error" in asked
    ]


def make_turns(context: CallContext, reply: Reply) -> list[Turn]:
    """Return the answers of a call as they are kept: the first with its prompt's new tokens."""
    call, place = context.call, context.place
    sampling = context.sampling.as_dict()
    if call.constraints:
        sampling["constraints"] = dict(call.constraints)
    if call.is_tool_forced:
        sampling["tool_choice"] = call.tool_choice
    if constraint := find_constraint(sampling, call.tools):
        sampling["constraint"] = constraint
    began_s = context.session.record.created_s
    first = context.session.conversation.num_turns
    # The first answer goes on from the call's parent, the others from the first one's prompt.
    parent = None if place.parent is None else place.parent.index
    branch, num_shared = place.branch, place.num_shared
    num_shared_messages = place.num_shared_messages
    turns = []
    for i, answer in enumerate(reply.answers):
        tokens = TokenRecord(
            parent=parent,
            num_shared=num_shared,
            prompt_ids=reply.prompt_ids[num_shared:],
            completion_ids=answer.completion_ids,
            policy_logprobs=answer.policy_logprobs,
            version_spans=answer.versions,
            branch=branch,
            routes=cut_routes(
                answer.routes,
                num_shared=num_shared,
                num_tokens=len(reply.prompt_ids) + len(answer.completion_ids),
            ),
        )
        turns.append(
            Turn(
                messages=call.messages[num_shared_messages:],
                num_shared_messages=num_shared_messages,
                answer=answer.message,
                tools=call.tools,
                tokens=tokens,
                num_prompt_tokens=len(reply.prompt_ids),
                num_completion_tokens=len(answer.completion_ids),
                finish_reason=answer.finish_reason,
                call_id=context.call_id,
                choice=i,
                model=context.model,
                route=call.route,
                sampling=sampling,
                upstream=reply.upstream,
                started_s=context.received_s - began_s,
                sent_s=reply.sent_s - began_s,
                completed_s=reply.answered_s - began_s,
                ended_s=reply.answered_s - began_s,
            )
        )
        parent, branch = first, None
        num_shared, num_shared_messages = len(reply.prompt_ids), len(call.messages)
    return turns


def key_reused(context: CallContext) -> GatewayError:
    """Return the error for an idempotency key with which something else was asked."""
    return GatewayError(
        ErrorKind.KEY_REUSED,
        f"Idempotency-Key {context.idempotency_key!r:.80} is of a call of this session that asked"
        " for something else (API, messages, tools or sampling): another call has another key",
    )


def read_served(store: RolloutStore, context: CallContext) -> Served | None:
    """Return the answer that a call got, from the store; None if its key got none.

    Raises `KEY_REUSED` where the answer is another call's with this key.
    """
    known = store.find_call(context.session.session_id, context.key_digest())
    if known is None:
        return None
    if known != context.call_id:
        raise key_reused(context)
    stored = store.stored(context.session.session_id)
    places = [i for i, turn in enumerate(stored.turns) if turn.call_id == context.call_id]
    answers = [
        Answer(
            message=turn.answer or assistant(),
            completion_ids=turn.tokens.completion_ids,
            policy_logprobs=turn.tokens.policy_logprobs,
            versions=turn.tokens.version_spans,
            finish_reason=turn.finish_reason,
        )
        for turn in (stored.turns[place] for place in places)
        if turn.tokens is not None
    ]
    first, began_s = stored.turns[places[0]], stored.record.created_s
    reply = Reply(
        prompt_ids=as_rollout(stored).prompt_ids(places[0]),
        answers=answers,
        upstream=first.upstream,
        sent_s=began_s + first.sent_s,
        answered_s=began_s + first.completed_s,
    )
    return Served(
        call_id=context.call_id,
        created_s=int(began_s + first.started_s),
        call=context.call,
        reply=reply,
    )

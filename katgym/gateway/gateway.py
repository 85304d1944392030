"""The gateway: a call comes in, is answered by a model server, written down, then served.

Not here: HTTP (`server/`); the APIs (`wire/`); how answers are made (`answering/`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katgym.environment.messages import assistant
from katgym.errors import KatgymError
from katgym.gateway.admission import RolloutManager
from katgym.gateway.answering.choose import Answerers, choose_answering
from katgym.gateway.call import Answer, CallContext, Dialect, ModelCall, Reply, Served
from katgym.gateway.config import GatewayConfig
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.session_table import LiveSession, SessionTable
from katgym.gateway.state_file import GatewayState, read_state, write_state
from katgym.gateway.upstreams import UpstreamPool
from katgym.play.rollout import Turn, prompt_messages
from katgym.policies.base import TokenRecord
from katgym.policies.expert_routes import cut_routes
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.groups import is_held_out
from katgym.rollout_store.records import FailedCall
from katgym.rollout_store.rollouts import as_rollout

logger = logging.getLogger(__name__)


class Gateway:
    """Answers calls of many agents' sessions; used in one event loop.

    Example:
        gateway = Gateway(config, store)
        await gateway.open()
        served = await gateway.respond(CallContext(session=session, api=openai_chat, ...))
    """

    def __init__(self, config: GatewayConfig, store: RolloutStore) -> None:
        self.config = config
        self.store = store
        self.sessions = SessionTable(store, config)
        self._state = read_state(store.folder)
        num_counted = sum(not is_held_out(record) for record in store.sessions())
        self.manager = RolloutManager(
            config,
            version=self._state.version,
            num_begun=num_counted - self._state.num_replaced,
        )
        self.pool = UpstreamPool(config)
        self._answerers: Answerers | None = None
        self._pending: dict[str, asyncio.Future[Served]] = {}

    async def open(self) -> None:
        """Reach the model servers and find out how they answer; does nothing the second time."""
        if self._answerers is not None:
            return
        await self.pool.open()
        try:
            self._answerers = await choose_answering(
                self.pool, self.config, lambda: self.manager.version
            )
        except BaseException:
            await self.pool.aclose()
            raise

    async def aclose(self) -> None:
        """Let go of the model servers; the store is its owner's."""
        await self.pool.aclose()

    @property
    def answerers(self) -> Answerers:
        """How calls are answered."""
        assert self._answerers is not None, "the gateway is not open"
        return self._answerers

    async def respond(self, context: CallContext) -> Served:
        """Answer a call; when this returns, the answer is in the store. Raises `GatewayError`."""
        session, api, store = context.session, context.api, self.store
        # 1. Parse: the body becomes a call. One that was answered before, by its idempotency key,
        # is served again, whether or not its session may still call.
        context.call = api.parse(context.body)
        if context.idempotency_key and store.has_call(session.session_id, context.call_id):
            return self._serve_again(context)
        # 2. Admit: its session is open, within its budget and not too old. The call counts from
        # here on, and waits while weights move.
        session.check_open(time.time())
        self.manager.check_staleness(session.oldest_version)
        session.num_in_flight += 1
        try:
            async with asyncio.timeout(session.seconds_left(time.time())):
                await self.manager.wait_for_resume()
                # 3. Place: the recorded answer it goes on from, or the nearest one.
                self._place(context)
                # 4. Answer: what the gateway's owner wants wins over what the agent asked for.
                self._apply_owner_settings(context)
                context.max_tokens = session.tokens_left()
                self.manager.num_in_flight += 1
                try:
                    reply = await self.answerers.for_call(context.call).answer(context)
                finally:
                    self.manager.num_in_flight -= 1
        except TimeoutError as e:
            raise session.deadline_error() from e
        finally:
            session.num_in_flight -= 1
        # 5. Record: the answer as the agent's API can say it goes to the store, then to the tree.
        # Nothing is awaited, so no other call of the session comes between.
        failed = _describe_invalid_tool_calls(context, reply)
        answers = [_make_servable(answer, api) for answer in reply.answers]
        if answers != reply.answers:
            reply = replace(reply, answers=answers)
        context.place.share_tokens(reply.prompt_ids)
        try:
            turns = _make_turns(context, reply)
            first = session.conversation.num_turns
            store.append(session.session_id, turns, failed, first=first)
        except (KatgymError, sqlite3.Error, OSError) as e:
            raise GatewayError(ErrorKind.STORE, f"the answer could not be written down: {e}") from e
        session.conversation.commit(context.place, turns)
        session.count(turns)
        # 6. Serve: the answer goes out under the call's id; its API writes it down (`wire/`).
        created_s = int(context.received_s)
        return Served(call_id=context.call_id, created_s=created_s, call=context.call, reply=reply)

    async def respond_once(self, context: CallContext) -> Served:
        """Answer a call that has an idempotency key: once, however often it is asked.

        A call with the same key in the same session gets the same answer, also after a restart,
        but without the log-probabilities it may have asked for once it is only in the store. The
        call goes on when its client disconnects.
        """
        pending = self._pending.get(context.call_id)
        if pending is None:

            def forget(done: asyncio.Future[Served]) -> None:
                del self._pending[context.call_id]
                if not done.cancelled():
                    done.exception()  # retrieved here, too: whoever asked may have gone

            pending = self._pending[context.call_id] = asyncio.ensure_future(self.respond(context))
            pending.add_done_callback(forget)
        return await asyncio.shield(pending)

    def resume(self, version: int | None = None) -> None:
        """Let calls out again; `version` is that of the weights from here on, and is kept."""
        self.manager.resume(version)
        if version is not None:
            self._write_state(replace(self._state, version=version))

    def replace_sessions(self, num_sessions: int, *, key: str = "") -> None:
        """Let so many more sessions begin, in place of some that nothing is learned from.

        key: names them; the same one again, also after a restart, changes nothing. "" names none.
        """
        state = self._state.with_replaced(num_sessions, key)
        if state is not self._state:
            self._write_state(state)
            self.manager.replace(num_sessions)  # once that is kept: who asks again finds the key

    def _write_state(self, state: GatewayState) -> None:
        write_state(self.store.folder, state)
        self._state = state

    async def models(self) -> list[Mapping[str, Any]]:
        """Return the models that agents may name, as the model server describes them."""
        if self.config.model:
            return [{"id": self.config.model}]
        found = await self.pool.get("/v1/models")
        try:
            return [{**card, "id": str(card["id"])} for card in found.data["data"]]
        except (KeyError, TypeError) as e:
            raise GatewayError(ErrorKind.UPSTREAM, "the model server lists no models") from e

    async def model(self, name: str) -> Mapping[str, Any]:
        """Return one of `models`; raises `UNKNOWN_MODEL`."""
        for card in await self.models():
            if card["id"] == name:
                return card
        raise GatewayError(ErrorKind.UNKNOWN_MODEL, f"there is no model {name!r:.200}")

    async def count_tokens(self, context: CallContext) -> int:
        """Return how many tokens the prompt of a chat call has, which is parsed."""
        self._place(context)
        self._apply_owner_settings(context)
        return await self.answerers.for_call(context.call).count(context)

    def note_failure(self, context: CallContext, failure: GatewayError) -> None:
        """Write down that a call was answered with an error."""
        session = context.session
        failed = FailedCall(
            call_id=secrets.token_hex(12),
            route=context.api.ROUTE,
            status=failure.status,
            kind=str(failure.kind),
            reason=failure.message[:1000],
            received_s=context.received_s,
        )
        try:
            self.store.append(session.session_id, (), (failed,))
        except (KatgymError, sqlite3.Error):
            logger.exception("a failed call of session %r was not written down", session.session_id)

    # ---- one call

    def _place(self, context: CallContext) -> None:
        """Set where a call belongs, and all its messages if it names an earlier call instead."""
        call, conversation = context.call, context.session.conversation
        if not call.is_chat:
            prompt = call.prompt_ids if call.prompt_text is None else call.prompt_text
            context.place = conversation.place_text(prompt or ())
            return
        if call.previous_call_id is not None:
            call = context.call = self._complete(context.session, call, call.previous_call_id)
        context.place = conversation.place(call.messages, call.tools)

    def _complete(self, session: LiveSession, call: ModelCall, previous_id: str) -> ModelCall:
        """Return a call with the messages and the answer of the earlier call that it names."""
        turns = self.store.turns(session.session_id)
        for index, turn in enumerate(turns):
            if turn.call_id == previous_id and turn.answer is not None:
                before, new = [*prompt_messages(turns, index), turn.answer], list(call.messages)
                if new and new[0]["role"] == before[0]["role"] == "system":
                    before[0] = new.pop(0)
                tools = turn.tools if call.has_previous_tools else call.tools
                return replace(call, messages=[*before, *new], tools=tools)
        raise GatewayError(
            ErrorKind.UNKNOWN_PREVIOUS,
            f"the answer {previous_id!r:.80} to go on from is not of this session",
        )

    def _apply_owner_settings(self, context: CallContext) -> None:
        """Set what is asked of the model server: the owner's model and sampling win."""
        context.model = self.config.model or context.call.model
        context.sampling = context.call.sampling.override(self.config.sampling)

    def _serve_again(self, context: CallContext) -> Served:
        """Return the answer that a call with this id got, from the store."""
        stored = self.store.stored(context.session.session_id)
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


def _make_servable(answer: Answer, api: Dialect) -> Answer:
    """Return an answer as its API can say it."""
    message = api.servable(answer.message)
    if message is answer.message:
        return answer
    is_tool_less = answer.finish_reason == "tool_calls" and not message.get("tool_calls")
    reason = "stop" if is_tool_less else answer.finish_reason
    return replace(answer, message=message, finish_reason=reason)


def _describe_invalid_tool_calls(context: CallContext, reply: Reply) -> list[FailedCall]:
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


def _make_turns(context: CallContext, reply: Reply) -> list[Turn]:
    """Return the answers of a call as they are kept: the first with its prompt's new tokens."""
    call, place = context.call, context.place
    sampling = context.sampling.as_dict()
    if call.constraints:
        sampling["constraints"] = dict(call.constraints)
    if call.tools and call.tool_choice != "auto":
        sampling["tool_choice"] = call.tool_choice
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

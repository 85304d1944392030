"""The gateway: a call comes in, is answered by a model server, written down, then served.

Not here: HTTP (`server/`); the APIs (`wire/`); how answers are made (`answering/`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from katgym.errors import KatgymError, UsageError
from katgym.gateway.answering.choose import Answerers, choose_answering
from katgym.gateway.call import CallContext, ModelCall, Reply, Served
from katgym.gateway.config import GatewayConfig
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.readiness import Readiness
from katgym.gateway.recorded_answers import (
    describe_invalid_tool_calls,
    key_reused,
    make_servable,
    make_turns,
    read_served,
)
from katgym.gateway.rollout_control import RolloutControl
from katgym.gateway.session_table import LiveSession, SessionTable
from katgym.gateway.upstreams.pool import UpstreamPool
from katgym.gateway.wire.message_memo import MessageMemo
from katgym.gateway.wire.tool_results import pair_results
from katgym.play.rollout import prompt_messages
from katgym.policies.waiting import waiting
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.changes import num_trainable
from katgym.rollout_store.group_commit import GroupCommit
from katgym.rollout_store.records import FailedCall
from katgym.system.concurrency import wait_out
from katgym.system.locks.folder_lease import FolderLease

logger = logging.getLogger(__name__)

_NOTE_S = 0.25
"""Seconds that an error's answer waits until it is written down that there was one."""


class Gateway:
    """Answers calls of many agents' sessions; used in one event loop.

    Example:
        gateway = Gateway(config, store)
        await gateway.open()
        served = await gateway.respond(CallContext(session=session, api=openai_chat, ...))
    """

    def __init__(
        self,
        config: GatewayConfig,
        store: RolloutStore,
        *,
        url: str = "",
        shard: int | None = None,
    ) -> None:
        """Take the store for this gateway alone, until `aclose`.

        url: where it is reached. shard: its number among those that share sessions; None: it has
        all. Raises `UsageError` naming the gateway that has the store.
        """
        self.config = config
        self.store = store
        self.lease = FolderLease.take(store.folder, what="gateway", url=url)
        self.clock = self.lease.clock
        try:
            self.control = RolloutControl(store.folder)
            self.writer = GroupCommit(store.connections)
            self.sessions = SessionTable(
                store,
                self.writer,
                config,
                clock=self.clock,
                salt=self.control.key_salt,
                shard=shard,
            )
            self.control.begin(config, self.clock.now_s, num_counted=num_trainable(store))
        except BaseException:
            self.lease.release()
            raise
        self.manager = self.control.manager
        self.pool = UpstreamPool(
            config, self.clock.now_s, version=lambda: self.manager.settled_version
        )
        self.readiness = Readiness(store.folder, self.writer, self.manager, self.pool)
        self._answerers: Answerers | None = None
        self._memo = MessageMemo()
        self._pending: dict[str, tuple[str, asyncio.Future[Served]]] = {}
        """Calls with an idempotency key that are out, with their ids, by their keys' digests."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Of this gateway's own, which end with it."""

    async def open(self) -> None:
        """Reach the model servers and find out how they answer; does nothing the second time."""
        if self._answerers is not None:
            return
        self._run(self.lease.keep())
        self._run(self.readiness.watch_store())
        try:
            facts = await self.pool.open()
            answerers = choose_answering(self.pool, self.config, self.manager.versions, facts)
            await self.pool.admit(answerers.tokenizer)
        except BaseException:
            await self.aclose()
            raise
        self._answerers = answerers
        self.readiness.is_open = True

    def stop(self) -> None:
        """Say that no calls are taken any more."""
        self.readiness.is_open = False

    async def aclose(self) -> None:
        """Let go of the model servers and of the store, which is its owner's to close."""
        self.readiness.is_open = False
        await self.pool.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.aclose()
        self.lease.release()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin work that nobody has to wait for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def answerers(self) -> Answerers:
        """How calls are answered."""
        assert self._answerers is not None, "the gateway is not open"
        return self._answerers

    async def respond(self, context: CallContext) -> Served:
        """Answer a call; when this returns, the answer is in the store. Raises `GatewayError`."""
        # 1. Parse: the body becomes a call.
        return await self._answer(context, self._parse(context))

    def _parse(self, context: CallContext) -> Sequence[bytes]:
        """Set a context's call; returns the call's chain, or none that is known."""
        if context.is_large:
            return context.chain
        context.call, chain = self._memo.read(context)
        return chain

    async def _answer(self, context: CallContext, chain: Sequence[bytes]) -> Served:
        """Answer a call that is parsed."""
        session, api = context.session, context.api
        # One that was answered before, by its idempotency key, is served again, whether or not its
        # session may still call.
        if context.idempotency_key:
            served = await asyncio.to_thread(read_served, self.store, context)
            if served is not None:
                return served
        # 2. Admit: its session is open, within its budget and not too old. The call counts from
        # here on, and waits while weights move.
        session.check_open(self.clock.now_s())
        self.manager.check_staleness(session.oldest_version)
        session.num_in_flight += 1
        try:
            async with session.within_deadline(self.clock):
                with waiting():
                    await self.manager.wait_for_resume()
                self.readiness.check_store()
                # 3. Place: the recorded answer it goes on from, or the nearest one.
                await self._place(context, chain)
                # 4. Answer: what the gateway's owner wants wins over what the agent asked for.
                self._apply_owner_settings(context)
                context.max_tokens = session.tokens_left()
                self.manager.num_in_flight += 1
                try:
                    reply = await self.answerers.for_call(context.call).answer(context)
                finally:
                    self.manager.num_in_flight -= 1
            # 5. Record: the answer as the agent's API can say it goes to the store, then to the
            # tree. A session's answers are committed one call after the other.
            failed = describe_invalid_tool_calls(context, reply)
            answers = [make_servable(answer, api) for answer in reply.answers]
            if answers != reply.answers:
                reply = replace(reply, answers=answers)
            async with session.recording:
                await self._record(context, reply, failed)
        except TimeoutError as e:
            raise session.deadline_error() from e
        finally:
            session.num_in_flight -= 1
        # 6. Serve: the answer goes out under the call's id; its API writes it down (`wire/`).
        created_s = int(context.received_s)
        return Served(call_id=context.call_id, created_s=created_s, call=context.call, reply=reply)

    async def respond_once(self, context: CallContext) -> Served:
        """Answer a call that has an idempotency key: once, however often it is asked.

        A call with the same key in the same session gets the same answer, also after a restart,
        but without the log-probabilities it may have asked for once it is only in the store. The
        call goes on when its client disconnects. Raises `KEY_REUSED` for a call that asks for
        something else than the first one with its key.
        """
        chain, key = self._parse(context) or context.call.chain(), context.key_digest()
        context.call_id = key + context.call.digest(chain)
        call_id, pending = self._pending.get(key, (context.call_id, None))
        if call_id != context.call_id:
            raise key_reused(context)
        if pending is None:

            def forget(done: asyncio.Future[Served]) -> None:
                del self._pending[key]
                if not done.cancelled():
                    done.exception()  # retrieved here, too: whoever asked may have gone

            pending = asyncio.ensure_future(self._answer(context, chain))
            self._pending[key] = call_id, pending
            pending.add_done_callback(forget)
        return await asyncio.shield(pending)

    async def begin(
        self, session_id: str, *, is_counted: bool = True, **options: Any
    ) -> LiveSession:
        """Return a session that has been admitted: a new one, or the one that has this id.

        is_counted: whether it was admitted as one of those that may begin; a place that it does not
        take is given back. options: see `SessionTable.create`.
        """
        making = self._make_session(session_id, is_counted, options)
        return await wait_out(asyncio.ensure_future(making))

    async def _make_session(
        self, session_id: str, is_counted: bool, options: Mapping[str, Any]
    ) -> LiveSession:
        try:
            return await self.sessions.create(session_id, **options)
        except BaseException as e:
            if is_counted:
                self.manager.replace(1)
            # Another request may have been quicker.
            found = await self.sessions.find(session_id) if isinstance(e, UsageError) else None
            if found is None:
                raise
            return found

    async def models(self) -> list[Mapping[str, Any]]:
        """Return the models that agents may name, as the model server describes them."""
        if name := self.config.model or self.manager.model:
            return [{"id": name}]
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
        await self._place(context, context.chain)
        self._apply_owner_settings(context)
        return await self.answerers.for_call(context.call).count(context)

    async def note_failure(self, context: CallContext, failure: GatewayError) -> None:
        """Write down that a call was answered with an error; waits no long time for that."""
        noting = self.note_failure_later(context, failure)
        await asyncio.wait((noting,), timeout=_NOTE_S)

    def note_failure_later(self, context: CallContext, failure: GatewayError) -> asyncio.Task[None]:
        """Begin to write down that a call was answered with an error."""
        return self._run(self._note_failure(context.session.session_id, context, failure))

    async def _note_failure(
        self, session_id: str, context: CallContext, failure: GatewayError
    ) -> None:
        failed = FailedCall(
            call_id=secrets.token_hex(12),
            route=context.api.ROUTE,
            status=failure.status,
            kind=str(failure.kind),
            reason=failure.message[:1000],
            received_s=context.received_s,
        )
        try:
            await self.writer.append(session_id, (), (failed,))
        except (KatgymError, sqlite3.Error) as e:
            logger.warning("a failed call of session %r was not written down: %s", session_id, e)

    # ---- one call

    async def _record(
        self, context: CallContext, reply: Reply, failed: Sequence[FailedCall]
    ) -> None:
        """Write an answer down and take it up; whoever calls holds `session.recording`."""
        session, place = context.session, context.place

        def take_up() -> None:
            session.conversation.commit(place, turns)
            session.count(turns)

        place.share_tokens(reply.prompt_ids)
        try:
            turns = make_turns(context, reply)
            first = session.conversation.num_turns
            await self.writer.append(
                session.session_id,
                turns,
                failed,
                first=first,
                on_commit=take_up,
                is_large=context.is_large,
            )
        except (KatgymError, sqlite3.Error, OSError) as e:
            raise GatewayError(ErrorKind.STORE, f"the answer could not be written down: {e}") from e

    async def _place(self, context: CallContext, chain: Sequence[bytes]) -> None:
        """Set where a call belongs, and all its messages if it names an earlier call instead.

        chain: of what it says, where that is known.
        """
        call, conversation = context.call, context.session.conversation
        if not call.is_chat:
            context.place = conversation.place_text(chain or call.chain())
            return
        if call.previous_call_id is not None:
            complete = partial(self._complete, context.session, call, call.previous_call_id)
            call, chain = await asyncio.to_thread(complete), ()
        if context.is_large:
            messages = await asyncio.to_thread(pair_results, call.messages)
        else:
            messages = pair_results(call.messages)
        if messages is not call.messages:
            call, chain = replace(call, messages=messages), ()
        context.call = call
        if context.is_large and not chain:
            chain = await asyncio.to_thread(call.chain)
        context.place = conversation.place(call.messages, call.tools, chain)

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
        adapter = self.manager.model
        context.model = adapter or self.config.model or context.call.model
        context.version = self.manager.version if adapter else None
        context.sampling = context.call.sampling.override(self.config.sampling)

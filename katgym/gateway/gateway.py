"""The gateway itself: a call comes in, is answered by a model server, written down, then served.

Not here: HTTP (`app.py`); the APIs (`wire/`); how answers are made (`answering/`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from katgym.errors import KatgymError
from katgym.gateway.admission import RolloutManager
from katgym.gateway.answering.base import with_sampling
from katgym.gateway.answering.choose import Answerers, choose_answering
from katgym.gateway.call import Answer, ModelCall, Reply, Served
from katgym.gateway.config import GatewayConfig
from katgym.gateway.conversation import Place, prompts
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.session_table import Session, SessionTable
from katgym.gateway.state_file import GatewayState, read_state, write_state
from katgym.gateway.upstreams import UpstreamPool
from katgym.messages import Message, assistant
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.groups import is_held_out
from katgym.rollout_store.records import FailedCall, Node, NodeText
from katgym.rollout_store.rollouts import as_rollout

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """A call as it came in."""

    call_id: str
    received_s: float
    """Unix time."""
    served_as: Callable[[Message], Message]


class Gateway:
    """Answers calls of many agents' sessions; used in one event loop.

    Example:
        gateway = Gateway(config, store)
        await gateway.open()
        served = await gateway.respond(session, call)
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

    async def respond(
        self,
        session: Session,
        call: ModelCall,
        *,
        received_s: float | None = None,
        idempotency_key: str = "",
        served_as: Callable[[Message], Message] = lambda message: message,
    ) -> Served:
        """Answer a call; when this returns, the answer is in the store.

        idempotency_key: a call with the same key in the same session gets the same answer, also
        after a restart, but without the log-probabilities it may have asked for; it goes on
        when its client hangs up. served_as: an answer's message as the agent's API can say it.
        Raises `GatewayError`.
        """
        received_s = time.time() if received_s is None else received_s

        async def respond(call_id: str) -> Served:
            arrival = _Arrival(call_id=call_id, received_s=received_s, served_as=served_as)
            return await self._respond(session, call, arrival)

        if not idempotency_key:
            return await respond(secrets.token_hex(12))
        name = f"{session.session_id}\0{idempotency_key}"
        call_id = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        pending = self._pending.get(call_id)
        if pending is None:
            known = self._served_before(session, call, call_id)
            if known is not None:
                return known
            pending = asyncio.ensure_future(respond(call_id))
            self._pending[call_id] = pending
            pending.add_done_callback(partial(self._answered_or_not, call_id))
        return await asyncio.shield(pending)

    def _answered_or_not(self, call_id: str, done: asyncio.Future[Served]) -> None:
        self._pending.pop(call_id, None)
        if not done.cancelled():
            done.exception()  # seen here, too: whoever asked may have gone

    def resume(self, version: int | None = None) -> None:
        """Let calls out again; `version` is that of the weights from here on, and is kept."""
        self.manager.resume(version)
        if version is not None:
            self._keep(replace(self._state, version=version))

    def replace_sessions(self, num_sessions: int, *, key: str = "") -> None:
        """Let so many more sessions begin, in place of some that nothing is learned from.

        key: names them; told again, also after a restart, it changes nothing. "" names none.
        """
        state = self._state.with_replaced(num_sessions, key)
        if state is not self._state:
            self._keep(state)
            self.manager.replace(num_sessions)  # once that is kept: who asks again finds the key

    def _keep(self, state: GatewayState) -> None:
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

    async def count_tokens(self, session: Session, call: ModelCall) -> int:
        """Return how many tokens a call's prompt has."""
        call = self._renamed(self._continued(session, call))
        place = session.conversation.place(call.messages, call.tools)
        return await self.answerers.for_call(call).count(call, place)

    def note_failure(
        self, session: Session, route: str, failure: GatewayError, received_s: float
    ) -> None:
        """Write down that a call was answered with an error."""
        failed = FailedCall(
            call_id=secrets.token_hex(12),
            route=route,
            status=failure.status,
            kind=str(failure.kind),
            reason=failure.message[:1000],
            received_s=received_s,
        )
        try:
            self.store.append(session.session_id, (), (failed,))
        except (KatgymError, sqlite3.Error):
            logger.exception("a failed call of session %r was not written down", session.session_id)

    # ---- one call

    async def _respond(self, session: Session, call: ModelCall, arrival: _Arrival) -> Served:
        session.check_open(time.time())
        self.manager.check_staleness(session.oldest_version)
        deadline_s = session.record.deadline_s
        session.num_in_flight += 1
        try:
            async with asyncio.timeout(None if deadline_s is None else deadline_s - time.time()):
                await self.manager.passed()
                return await self._answered(session, call, arrival)
        except TimeoutError as e:
            raise GatewayError(
                ErrorKind.DEADLINE, f"session {session.session_id!r} is past its deadline"
            ) from e
        finally:
            session.num_in_flight -= 1

    async def _answered(self, session: Session, call: ModelCall, arrival: _Arrival) -> Served:
        call = self._continued(session, call)
        place = _place(session, call)
        asked = self._renamed(call)
        self.manager.num_in_flight += 1
        try:
            reply = await self.answerers.for_call(asked).answer(
                asked, place, session_id=session.session_id, max_tokens=session.tokens_left()
            )
        finally:
            self.manager.num_in_flight -= 1
        failed = _invalid_calls(call, reply, arrival)
        answers = [_served(a, arrival) for a in reply.answers]
        if answers != reply.answers:
            reply = replace(reply, answers=answers)
        served = Served(
            call_id=arrival.call_id, created_s=int(arrival.received_s), call=call, reply=reply
        )
        self._record(session, place, served, asked, arrival, failed)
        return served

    def _record(
        self,
        session: Session,
        place: Place,
        served: Served,
        asked: ModelCall,
        arrival: _Arrival,
        failed: Sequence[FailedCall],
    ) -> None:
        """Write an answer down, then take it up: nothing is awaited, so no call comes between."""
        nodes, texts = _nodes(session, place, served, asked, arrival.received_s)
        try:
            self.store.append(session.session_id, list(zip(nodes, texts, strict=True)), failed)
        except (KatgymError, sqlite3.Error, OSError) as e:
            raise GatewayError(ErrorKind.STORE, f"the answer could not be written down: {e}") from e
        session.conversation.commit(place, nodes, texts)
        session.count(nodes)

    def _renamed(self, call: ModelCall) -> ModelCall:
        """Return a call with the model and the sampling that the gateway's owner wants."""
        model = self.config.model or call.model
        if model == call.model and not self.config.sampling:
            return call
        sampling = with_sampling(call.sampling, self.config.sampling)
        return replace(call, model=model, sampling=sampling)

    def _continued(self, session: Session, call: ModelCall) -> ModelCall:
        """Return a call with the messages that it goes on from, if it names an earlier one."""
        if call.previous_call_id is None:
            return call
        nodes, texts = self.store.nodes(session.session_id), self.store.texts(session.session_id)
        for node, text, prompt in zip(nodes, texts, prompts(nodes, texts), strict=True):
            if node.call_id == call.previous_call_id and text.answer is not None:
                before = [*prompt, text.answer]
                if call.has_previous_tools:
                    call = replace(call, tools=text.tools)
                has_system = bool(call.messages) and call.messages[0]["role"] == "system"
                if has_system and before[0]["role"] == "system":
                    before[0] = call.messages[0]
                    return replace(call, messages=[*before, *call.messages[1:]])
                return replace(call, messages=[*before, *call.messages])
        raise GatewayError(
            ErrorKind.UNKNOWN_PREVIOUS,
            f"the answer {call.previous_call_id!r:.80} to go on from is not of this session",
        )

    def _served_before(self, session: Session, call: ModelCall, call_id: str) -> Served | None:
        """Return the answer that a call with this id got, from the store."""
        if not self.store.has_call(session.session_id, call_id):
            return None
        stored = self.store.stored(session.session_id)
        found = [n for n in stored.nodes if n.call_id == call_id]
        first = found[0]
        answers = [
            Answer(
                message=stored.texts[node.index].answer or assistant(),
                completion_ids=node.completion_ids,
                policy_logprobs=node.policy_logprobs,
                versions=node.versions,
                finish_reason=node.finish_reason,
            )
            for node in found
        ]
        reply = Reply(
            prompt_ids=as_rollout(stored).prompt_ids(first.index),
            answers=answers,
            upstream=first.upstream,
            sent_s=first.sent_s,
            answered_s=first.answered_s,
        )
        return Served(call_id=call_id, created_s=int(first.received_s), call=call, reply=reply)


def _served(answer: Answer, arrival: _Arrival) -> Answer:
    """Return an answer as its API says it."""
    message = arrival.served_as(answer.message)
    if message is answer.message:
        return answer
    reason = answer.finish_reason
    if reason == "tool_calls" and not message.get("tool_calls"):
        reason = "stop"
    return replace(answer, message=message, finish_reason=reason)


def _invalid_calls(call: ModelCall, reply: Reply, arrival: _Arrival) -> list[FailedCall]:
    """Return a record for each tool call that the model wrote wrongly; its text is served."""
    return [
        FailedCall(
            call_id=arrival.call_id,
            route=call.route,
            status=200,
            kind="invalid_tool_call",
            reason=asked["error"][:1000],
            received_s=arrival.received_s,
        )
        for answer in reply.answers
        for asked in answer.message.get("tool_calls", ())
        if "error" in asked
    ]


def _place(session: Session, call: ModelCall) -> Place:
    if call.is_chat:
        return session.conversation.place(call.messages, call.tools)
    prompt = call.prompt_ids if call.prompt_text is None else call.prompt_text
    return session.conversation.place_text(prompt or ())


def _nodes(
    session: Session, place: Place, served: Served, asked: ModelCall, received_s: float
) -> tuple[list[Node], list[NodeText]]:
    """Return the answers of a call as they are kept: the first with its prompt's new tokens."""
    reply, call = served.reply, served.call
    delta = session.conversation.delta(place, reply.prompt_ids)
    first = session.conversation.num_nodes
    num_shared_messages = 0 if delta.parent is None else place.num_known_messages
    nodes, texts = [], []
    for i, answer in enumerate(reply.answers):
        node = Node(
            index=first + i,
            call_id=served.call_id,
            choice=i,
            parent=delta.parent if i == 0 else first,
            num_shared=delta.num_shared if i == 0 else len(reply.prompt_ids),
            prompt_ids=reply.prompt_ids[delta.num_shared :] if i == 0 else (),
            completion_ids=answer.completion_ids,
            policy_logprobs=answer.policy_logprobs,
            versions=answer.versions,
            branch=delta.branch if i == 0 else None,
            finish_reason=answer.finish_reason,
            model=asked.model,
            route=call.route,
            sampling=_kept_sampling(asked),
            upstream=reply.upstream,
            received_s=received_s,
            sent_s=reply.sent_s,
            answered_s=reply.answered_s,
        )
        shared = num_shared_messages if i == 0 else len(call.messages)
        text = NodeText(
            num_shared_messages=shared,
            messages=call.messages[shared:],
            answer=answer.message,
            tools=call.tools,
        )
        nodes.append(node)
        texts.append(text)
    return nodes, texts


def _kept_sampling(call: ModelCall) -> Mapping[str, object]:
    kept = call.sampling.as_dict()
    if call.constraints:
        kept["constraints"] = dict(call.constraints)
    if call.tools and call.tool_choice != "auto":
        kept["tool_choice"] = call.tool_choice
    return kept

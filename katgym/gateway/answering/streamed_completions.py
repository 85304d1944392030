"""The completions of one call as model servers stream them, one server after the other.

A server that ends in the middle leaves what it sampled; the next one is asked for the rest. Of
several completions the unfinished ones are then asked for one by one. A stop string that lies
across the seam is found here, since no server sees both halves.

Not here: reading streams (`upstreams/exchange.py`); which server is next (`upstreams/pool.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from katgym.errors import PolicyError
from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.attempt_error import AttemptError
from katgym.policies.partial_completion import PartialCompletion
from katgym.vllm_server.token_api import (
    EventMerger,
    SampledTokens,
    TokenRequest,
    completions_body,
    generate_body,
    parse_completions,
    parse_generate,
)

logger = logging.getLogger(__name__)

SOURCE = "the model server"
QUIET_PULSE_S = 0.25
"""Where nobody sees the tokens before the last one."""
LIVE_PULSE_S = 0.02
_OUTPUT_PENALTIES = ("frequency_penalty", "presence_penalty")
"""They count sampled tokens alone: what was sampled is no prompt to them."""


@dataclass(slots=True)
class _Completion:
    """One completion: what is kept of it, and why it ended."""

    sampled: PartialCompletion = field(default_factory=PartialCompletion)
    finish_reason: str = ""
    """"" while it is not finished."""
    routes: bytes = b""
    is_verified: bool = True
    num_parts: int = 0


class StreamedCompletions:
    """A `StreamedCall`; see `upstreams/exchange.py`.

    extra: further sampling parameters. encode_ids: a prompt's ids to JSON. decode: ids to text,
        special tokens left out.
    is_resumable: whether what was sampled may be kept where another server has to go on.
    on_tokens: called when tokens came, with what returns all of them; None for nobody.
    """

    def __init__(
        self,
        request: TokenRequest,
        extra: Mapping[str, Any],
        versions: VersionLog,
        *,
        has_generate: bool,
        encode_ids: Callable[[Sequence[int]], bytes],
        decode: Callable[[Sequence[int]], str],
        is_resumable: bool = True,
        on_tokens: Callable[[Callable[[], Sequence[int]]], None] | None = None,
    ) -> None:
        self._request = request
        self._extra = extra
        self._versions = versions
        self._has_generate = has_generate
        self._encode_ids = encode_ids
        self._decode = decode
        self._is_resumable = is_resumable and not any(extra.get(p) for p in _OUTPUT_PENALTIES)
        self._on_tokens = on_tokens
        self._completions = [_Completion() for _ in range(request.num_completions)]
        self._merger = EventMerger(source=SOURCE)
        self._whole: list[SampledTokens] = []
        """Of an answer that was no stream."""
        self._asked = list(range(request.num_completions))
        """Which completion each index of the answer is."""
        self.sent_s = 0.0
        """Unix time at which the first attempt went out of which something is kept."""
        self._sent_s = 0.0
        self.pulse_s = QUIET_PULSE_S if on_tokens is None else LIVE_PULSE_S

    @property
    def num_sampled(self) -> int:
        return sum(len(one.sampled.token_ids) for one in self._completions)

    @property
    def is_over(self) -> bool:
        return all(one.finish_reason for one in self._completions)

    @property
    def is_part_over(self) -> bool:
        choices = self._merger.choices
        return len(choices) == len(self._asked) and all(
            choice["finish_reason"] for choice in choices.values()
        )

    def body(self) -> dict[str, Any]:
        """Return what to ask for next: all at first, later the rest of one completion."""
        request, num = self._request, 0
        self._asked = list(range(len(self._completions)))
        if self.num_sampled:
            place = next(i for i, one in enumerate(self._completions) if not one.finish_reason)
            sampled = self._completions[place].sampled
            self._asked, num = [place], len(sampled.token_ids)
            prompt_ids, left, seed = sampled.rest(
                request.prompt_ids, request.max_tokens, request.seed
            )
            if place and not num and seed is not None:
                seed += place  # as servers number the seeds of several
            request = replace(
                request, prompt_ids=prompt_ids, max_tokens=left, seed=seed, num_completions=1
            )
        extra = dict(self._extra)
        if num and extra.get("min_tokens"):
            extra["min_tokens"] = max(extra["min_tokens"] - num, 0)
        ids = msgspec.Raw(self._encode_ids(request.prompt_ids))
        request = replace(request, prompt_ids=request.prompt_ids[:1])
        if not self._has_generate:
            return completions_body(request) | extra | {"prompt": ids}
        body = generate_body(request)
        body["sampling_params"] |= extra
        body["token_ids"] = ids
        return body

    def begin(self, sent_s: float) -> None:
        self._sent_s = sent_s
        self.sent_s = self.sent_s if self.num_sampled else sent_s
        self._merger = EventMerger(source=SOURCE)
        self._whole = []

    def take(self, event: Any) -> None:
        self._merger.add(event)
        if any(index not in range(len(self._asked)) for index in self._merger.choices):
            del self._merger.choices[max(self._merger.choices)]
            raise PolicyError(f"{SOURCE} answered a choice that nobody asked for")
        for index, choice in self._merger.choices.items():
            self._check_seam(self._completions[self._asked[index]], choice)
        if any(c["finish_reason"] == "abort" for c in self._merger.choices.values()):
            raise _given_up()
        if self._on_tokens is not None:
            self._on_tokens(self._first_ids)

    def take_whole(self, answer: Any) -> None:
        self._whole = self._parse(answer)
        if any(sampled.finish_reason == "abort" for sampled in self._whole):
            raise _given_up()

    def end(self, ended_s: float) -> None:
        """Keep what the attempt brought: of what it did not finish, the tokens.

        Raises `GatewayError` for an answer that is whole and cannot be used.
        """
        choices = self._merger.choices
        if not choices:
            # Servers that know of no `n` answer once.
            if self._whole and not self.num_sampled:
                self._completions = self._completions[: len(self._whole)]
            for place, part in zip(self._asked, self._whole, strict=False):
                is_finished = part.finish_reason != "abort"
                self._keep(self._completions[place], part, is_finished, ended_s)
            return
        is_whole = self.is_part_over
        try:
            parts = self._parse(self._merger.answer())
        except GatewayError as e:
            if is_whole:
                raise
            logger.warning("what was streamed is given up: %s", e)
            return
        for index, part in zip(sorted(choices), parts, strict=True):
            is_finished = choices[index]["finish_reason"] not in (None, "abort")
            self._keep(self._completions[self._asked[index]], part, is_finished, ended_s)

    def _parse(self, answer: Any) -> list[SampledTokens]:
        parse = parse_generate if self._has_generate else parse_completions
        try:
            return parse(answer, source=SOURCE)
        except PolicyError as e:
            is_bare = e.kind == "policy_no_logprobs" or "token_ids" in str(e)
            kind = ErrorKind.NO_TOKEN_IDS if is_bare else ErrorKind.UPSTREAM
            raise GatewayError(kind, str(e)) from e

    def _first_ids(self) -> list[int]:
        """Return all ids of the first completion so far."""
        choice = self._merger.choices.get(0, {"token_ids": []})
        return [*self._completions[0].sampled.token_ids, *choice["token_ids"]]

    def _keep(
        self, one: _Completion, part: SampledTokens, is_finished: bool, ended_s: float
    ) -> None:
        num = len(part.token_ids)
        if not is_finished and not self._is_resumable:
            if num:
                logger.warning("%d sampled tokens are given up: they cannot be gone on from", num)
            return
        spans = part.version_spans or self._versions.spans(self._sent_s, ended_s, num)
        one.sampled.add(replace(part, version_spans=spans))
        one.num_parts += bool(num)
        one.routes = part.routes if one.num_parts < 2 else b""  # no server told all of them
        one.is_verified = one.is_verified and part.is_verified
        if is_finished:
            one.finish_reason = part.finish_reason
        elif len(one.sampled.token_ids) >= self._request.max_tokens:
            one.finish_reason = "length"
        elif num and part.token_ids[-1] in self._request.stop_token_ids:
            one.finish_reason = "stop"

    def _check_seam(self, one: _Completion, choice: dict[str, Any]) -> None:
        """End a completion at a stop string of which earlier servers sampled the beginning."""
        kept, ids = one.sampled.token_ids, choice["token_ids"]
        margin = max((len(stop.encode()) for stop in self._request.stop), default=0)
        if not kept or len(ids) > 2 * margin:
            return
        tail = kept[-margin:]
        if not any(stop in self._decode([*tail, *ids]) for stop in self._request.stop):
            return
        num = next(
            n
            for n in range(len(ids) + 1)
            if any(stop in self._decode([*tail, *ids[:n]]) for stop in self._request.stop)
        )
        del ids[num:]
        for values in choice["logprobs"].values():
            del values[num:]
        choice["finish_reason"] = "stop"
        for name in ("weight_versions", "routed_experts"):  # of more than is left
            choice.pop(name, None)

    def sampled(self) -> list[SampledTokens]:
        """Return the completions, which are over."""
        return [
            SampledTokens(
                token_ids=one.sampled.token_ids,
                policy_logprobs=one.sampled.policy_logprobs,
                finish_reason=one.finish_reason,
                version_spans=one.sampled.version_spans,
                routes=one.routes,
                is_verified=one.is_verified,
            )
            for one in self._completions
        ]


def _given_up() -> AttemptError:
    text = "the model server gave up in the middle"
    return AttemptError(GatewayError(ErrorKind.UPSTREAM, text), is_given_up=True)

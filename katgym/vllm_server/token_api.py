"""Token ids in, token ids out: what is posted to a vLLM server, and how its answers are read.

Pure functions, for any HTTP transport. Two routes give the same `SampledTokens`:

- `/inference/v1/generate` (vLLM >= 0.20, started with `--enable-scale-out`), which also says which
  weights sampled which token;
- `/v1/completions` (vLLM >= 0.10.2), which does not.

Not here: sending (`token_client.py`); which routes a server has (`control.py`).
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from katgym.errors import PolicyError, UsageError
from katgym.policies.base import Sampling
from katgym.policies.version_span import VersionSpan, check_spans, one_span

GENERATE_ROUTE = "/inference/v1/generate"
COMPLETIONS_ROUTE = "/v1/completions"
SESSION_HEADER = "X-Session-ID"
"""Requests with the same value come from one episode: routers keep them on one server."""

UNVERIFIED = "unverified"
"""The version of weights that did not pass their check, or arrived in part."""

_NO_LOGPROB = -9999.0
"""What vLLM writes for a log-probability that is missing, NaN or -inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """What to sample.

    Example:
        TokenRequest(model="tiny", prompt_ids=[5, 6, 7], max_tokens=64, seed=1)
    """

    model: str
    """Name of the served model, or of one of its LoRA adapters."""
    prompt_ids: Sequence[int]
    max_tokens: int
    """Tokens per completion."""
    sampling: Sampling = field(default_factory=Sampling)
    """Its `max_tokens` is not used."""
    seed: int | None = None
    num_completions: int = 1
    """Independent completions of the same prompt."""
    stop: Sequence[str] = ()
    """Texts that end a completion; their tokens are kept."""
    stop_token_ids: Sequence[int] = ()
    """Ids that end a completion, beside the model's own end; they are kept."""
    num_top_logprobs: int = 0
    """Likeliest tokens reported per position, beside the sampled one."""
    routes_start: int = 0
    """Prompt tokens whose experts a server that tells them leaves out."""
    cache_salt: str = ""
    """Prefixes are shared only between requests with the same salt; "" shares with all unsalted."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise UsageError("a request needs at least one prompt token")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is >= 1, got {self.max_tokens!r}")
        if self.num_completions < 1:
            raise UsageError(f"num_completions is >= 1, got {self.num_completions!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """One completion as a server reported it, the stop token included.

    Its spans cover it; ids and log-probabilities are not yet checked.
    """

    token_ids: list[int]
    policy_logprobs: list[float]
    """Empty: the server reported none."""
    finish_reason: str
    """`stop`, `length`, or `abort`: the server gave up in the middle, as for `pause(abort)`."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Which weights sampled which tokens; empty: neither server nor caller could say."""
    routes: bytes = b""
    """Experts of tokens from `routes_start` to the last but one (`expert_routes.py`), or empty."""
    is_verified: bool = True
    """Whether none of its weights is labelled `UNVERIFIED`."""


def generate_body(request: TokenRequest) -> dict[str, Any]:
    """Return what to post to `GENERATE_ROUTE`."""
    params = _sampling_params(request)
    # This route counts the sampled token among them, and lists it first.
    params["logprobs"] = request.num_top_logprobs + 1 if request.num_top_logprobs else 0
    # Stop strings are looked for in text; without them nobody needs any.
    params["detokenize"] = bool(request.stop)
    body: dict[str, Any] = {
        "model": request.model,
        "token_ids": list(request.prompt_ids),
        "sampling_params": params,
    }
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    return body


def completions_body(request: TokenRequest) -> dict[str, Any]:
    """Return what to post to `COMPLETIONS_ROUTE`."""
    body = {
        "model": request.model,
        "prompt": list(request.prompt_ids),
        "logprobs": request.num_top_logprobs,
        "return_token_ids": True,
        **_sampling_params(request),
        # Of a server's defaults as well, which the other route takes none of.
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    return body


def parse_generate(
    answer: Any, *, source: str = "vLLM", version: int | None = None
) -> list[SampledTokens]:
    """Return the completions that `GENERATE_ROUTE` answered, in order.

    source: who answered, for the message of the `PolicyError` that an unreadable answer raises.
    version: that of weights whose label is no number, such as vLLM's own, "default". None: not
        known, and a completion with a token of theirs has no spans.
    """
    return [_read_generated(choice, answer, source, version) for choice in _choices(answer, source)]


def parse_completions(
    answer: Any, *, source: str = "vLLM", version: int | None = None
) -> list[SampledTokens]:
    """Return the completions that `COMPLETIONS_ROUTE` answered, in order; see `parse_generate`.

    version: that of all tokens, as this route tells none.
    """
    return [_read_completed(choice, answer, source, version) for choice in _choices(answer, source)]


class EventMerger:
    """Choices of an answer of either route that comes as events.

    Example:
        for event in events:
            merger.add(event)
        parse_generate(merger.answer())
    """

    def __init__(self, *, source: str = "vLLM") -> None:
        self.choices: dict[int, dict[str, Any]] = {}
        """By their index, as a whole answer has them; `finish_reason` is None while more comes."""
        self._source = source

    def add(self, event: Any) -> None:
        """Add what an event tells; raises `PolicyError`, and adds nothing, for any other JSON."""
        try:
            parts = [
                (int(part.get("index") or 0), *_read_event_part(part)) for part in event["choices"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            raise _no_field(e, event, self._source) from e
        for index, ids, entries, values, told in parts:
            choice = self.choices.get(index)
            if choice is None:
                logprobs: dict[str, list[Any]] = {"content": [], "token_logprobs": []}
                choice = {"token_ids": [], "logprobs": logprobs, "finish_reason": None}
                self.choices[index] = {"index": index, **choice}
                choice = self.choices[index]
            choice["token_ids"] += ids
            choice["logprobs"]["content"] += entries
            choice["logprobs"]["token_logprobs"] += values
            choice.update(told)

    def answer(self) -> dict[str, Any]:
        """Return all of it as a whole answer, for `parse_generate` or `parse_completions`."""
        return {"choices": list(self.choices.values())}


def _read_event_part(
    part: Mapping[str, Any],
) -> tuple[list[int], list[Any], list[float], dict[str, Any]]:
    """Return new ids, their log-probabilities in the form of either route, and what else is told.

    Raises `ValueError` and its like for what is no part of an answer.
    """
    told = {
        name: part[name]
        for name in ("finish_reason", "weight_versions", "routed_experts")
        if part.get(name) is not None
    }
    ids = part["token_ids"] or []
    if not ids:
        return [], [], [], told
    logprobs = part["logprobs"] or {}
    entries, values = logprobs.get("content") or [], logprobs.get("token_logprobs") or []
    given = values or [entry["logprob"] for entry in entries]
    if len(given) != len(ids):
        raise ValueError(f"log-probability for each of {len(ids)} tokens, but {len(given)}")
    if min(array("i", ids)) < 0 or not math.isfinite(math.fsum(given)):
        raise ValueError("token_ids and log-probabilities that are such")
    return ids, entries, values, told


def top_logprob(answer: Any, *, source: str = "vLLM") -> float:
    """Return the highest log-probability that an answer of either route reports first.

    The request asked for `num_top_logprobs` of 1 or more.
    """
    try:
        logprobs = answer["choices"][0]["logprobs"]
        if "content" in logprobs:
            return max(float(top["logprob"]) for top in logprobs["content"][0]["top_logprobs"])
        return max(float(value) for value in logprobs["top_logprobs"][0].values())
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise PolicyError(
            f"{source}: the answer has no top_logprobs: {answer!s:.300}", kind="policy_no_logprobs"
        ) from e


def score_body(model: str, token_ids: Sequence[int]) -> dict[str, Any]:
    """Return what to post to `COMPLETIONS_ROUTE` for the log-probabilities of given tokens."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
    }


def parse_scores(answer: Any, token_ids: Sequence[int], *, source: str = "vLLM") -> list[float]:
    """Return the log-probability of every token of `token_ids` but the first."""
    try:
        rows = answer["choices"][0]["prompt_logprobs"]
        given = list(zip(token_ids, rows, strict=True))[1:]
        return [float(row[str(token)]["logprob"]) for token, row in given]
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise PolicyError(
            f"{source}: the answer has no prompt_logprobs for {len(token_ids)} tokens:"
            f" {answer!s:.300}",
            kind="policy_no_logprobs",
        ) from e


def _sampling_params(request: TokenRequest) -> dict[str, Any]:
    """Return what both routes call the same; a server's own defaults are overridden."""
    params: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(request.stop_token_ids),
        "skip_special_tokens": False,
    }
    if request.num_completions > 1:
        params["n"] = request.num_completions
    if request.stop:
        params["stop"] = list(request.stop)
    if request.seed is not None:
        params["seed"] = request.seed
    if request.routes_start:
        params["routed_experts_prompt_start"] = request.routes_start
    return params


def _choices(answer: Any, source: str) -> list[Mapping[str, Any]]:
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice.get("index") or 0))
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise _no_field(e, answer, source) from e
    if not choices:
        raise _no_field("choices", answer, source)
    return choices


def _read_generated(
    choice: Mapping[str, Any], answer: Any, source: str, version: int | None
) -> SampledTokens:
    try:
        logprobs = choice["logprobs"]
        content = logprobs["content"] or () if logprobs else ()
        labels = [
            (str(span["version"]), int(span["start"]), int(span["end"]))
            for span in choice.get("weight_versions") or ()
        ]
        sampled = _make_sampled(
            choice["token_ids"],
            [token["logprob"] for token in content],
            str(choice["finish_reason"]),
            source,
        )
    except (KeyError, TypeError, ValueError) as e:
        raise _no_field(e, answer, source) from e
    return replace(
        sampled,
        routes=choice_routes(choice, source),
        version_spans=_spans(labels, len(sampled.token_ids), source, version),
        is_verified=all(label != UNVERIFIED for label, _, _ in labels),
    )


def _read_completed(
    choice: Mapping[str, Any], answer: Any, source: str, version: int | None
) -> SampledTokens:
    try:
        logprobs = choice["logprobs"]
        values = logprobs["token_logprobs"] if logprobs else []
        sampled = _make_sampled(choice["token_ids"], values, str(choice["finish_reason"]), source)
    except (KeyError, TypeError) as e:
        raise _no_field(e, answer, source) from e
    spans = _spans((), len(sampled.token_ids), source, version)
    return replace(sampled, version_spans=spans, routes=choice_routes(choice, source))


def choice_routes(choice: Mapping[str, Any], source: str) -> bytes:
    """Return the experts that a server with `--enable-return-routed-experts` tells; else b""."""
    try:
        return base64.b64decode(choice.get("routed_experts") or b"", validate=True)
    except (TypeError, ValueError) as e:
        raise PolicyError(
            f"{source}: routed_experts is no base64: {e}", kind="policy_bad_response"
        ) from e


def _spans(
    labels: Sequence[tuple[str, int, int]], num_tokens: int, source: str, version: int | None
) -> tuple[VersionSpan, ...]:
    """Return spans of (label, start, end); one of `version` where a server reported none.

    Weights that sampled nothing, which servers tell as well, have none.
    """
    spans = []
    for label, start, end in labels:
        number = int(label) if label.isdecimal() else version
        if number is None:
            return ()
        if start != end:
            spans.append(VersionSpan(version=number, start=start, end=end))
    if not spans:
        return () if version is None else one_span(version, num_tokens)
    try:
        check_spans(spans, num_tokens, of="weight_versions")
    except UsageError as e:
        raise PolicyError(f"{source}: {e}", kind="policy_bad_response") from e
    return tuple(spans)


def _make_sampled(ids: Any, logprobs: Any, reason: str, source: str) -> SampledTokens:
    if not isinstance(ids, list) or not isinstance(logprobs, list):
        raise PolicyError(
            f"{source}: token_ids and token_logprobs are lists, got {ids!s:.100} and"
            f" {logprobs!s:.100}",
            kind="policy_bad_response",
        )
    if _NO_LOGPROB in logprobs:
        raise PolicyError(
            f"{source}: token {logprobs.index(_NO_LOGPROB)} of {len(ids)} was sampled without a"
            " finite log-probability; the server's weights or activations may hold NaN",
            kind="policy_no_logprobs",
        )
    return SampledTokens(
        token_ids=ids,
        policy_logprobs=logprobs,
        finish_reason=reason if reason in ("length", "abort") else "stop",
    )


def _no_field(what: object, answer: Any, source: str) -> PolicyError:
    hint = " (it needs vLLM >= 0.10.2)" if "token_ids" in str(what) else ""
    return PolicyError(
        f"{source}: the answer has no {what}{hint}: {answer!s:.300}", kind="policy_bad_response"
    )

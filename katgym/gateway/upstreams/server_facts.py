"""Identity of a model server: models, tokenizer, chat template, weights, as far as it tells them.

Asked of vLLM's `/v1/models`, `/tokenize`, `/detokenize`, and of `/v1/completions` or
`/v1/chat/completions` for a few greedy tokens. What a server does not tell is None, and is not
checked.

Not here: when servers are asked, and what follows from a difference (`handshake.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

PROBE_HEADER = "X-Katgym-Probe"
"""Of requests that are no agent's."""
ASK_TIMEOUT_S = 20.0
TEXT = (
    "The capital of France is Paris.\n\n\tdef add(a, b):\n        return a + b  # 12345 67.89\n"
    "It's naïve — 日本語, русский, العربية, 🙂!! https://example.org/?q=1&r=two_three\r\n   "
)
"""Encoded by every server: words, code, numbers, blanks, scripts."""
_PROMPTS = ("The capital of France is", "def add(a, b):\n    return", "1, 2, 3, 4,")
_NUM_GREEDY = 4
_MAX_IDS = 1 << 20
_RANGE = 8192
_SHOWN = 30
_OWN_DRIFT = 0.1
"""Of log-probabilities of a server that is asked the same twice."""
_LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_CONVERSATION = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Look around."},
)

Vocabulary = tuple[tuple[int, int, str], ...]
"""Ids from (inclusive), to (exclusive), and their text."""
Greedy = tuple[tuple[str, float], ...]
"""Tokens after one prompt, with log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What one server tells of itself; None: it does not."""

    url: str
    cards: Mapping[str, Mapping[str, Any]] | None = None
    """Of `/v1/models`, by id."""
    routes: frozenset[str] = frozenset()
    """Of `/openapi.json`."""
    encoding: tuple[int, ...] | None = None
    """Ids of `TEXT`."""
    vocabulary: Vocabulary | None = None
    templates: tuple[tuple[int, ...] | None, ...] = (None, None)
    """Ids of a conversation, without tools and with one."""
    weights: tuple[Greedy, ...] | None = None

    @property
    def parts(self) -> dict[str, bool]:
        """What it tells of itself."""
        return {
            "model": self.cards is not None,
            "tokenizer": self.encoding is not None or self.vocabulary is not None,
            "chat template": any(self.templates),
            "weights": self.weights is not None,
        }

    def differences(self, other: ServerFacts, *, model: str, tolerance: float) -> list[str]:
        """Return in what a server is not like `other`, and how.

        model: that calls ask for; "" for any that both have. tolerance: of log-probabilities.
        """
        found = [
            _compare_models(self, other, model),
            _compare_encodings(self, other) or _compare_vocabularies(self, other),
            next(
                (
                    f"chat template: {_first_difference(mine, theirs, other.url)}"
                    for mine, theirs in zip(self.templates, other.templates, strict=True)
                    if mine and theirs and mine != theirs
                ),
                "",
            ),
        ]
        if self.weights and other.weights and tolerance:
            found.append(compare_weights(self.weights, other.weights, tolerance, other.url))
        return [text for text in found if text]


async def ask(
    client: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = ASK_TIMEOUT_S,
) -> tuple[int, bytes]:
    """Return status and body of an answer; raises what aiohttp raises, and `TimeoutError`."""
    method = "GET" if body is None else "POST"
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with client.request(
        method, url, json=body, timeout=limit, headers={PROBE_HEADER: "1"}
    ) as answer:
        return answer.status, await answer.read()


async def ask_facts(client: aiohttp.ClientSession, url: str, model: str) -> ServerFacts:
    """Ask a server for all it tells but its weights; model: to ask for, "" takes its first."""
    listed, documented = await asyncio.gather(
        _ask_json(client, f"{url}/v1/models"), _ask_json(client, f"{url}/openapi.json")
    )
    cards = None
    if isinstance(listed, dict) and isinstance(listed.get("data"), list):
        cards = {str(c["id"]): c for c in listed["data"] if isinstance(c, dict) and "id" in c}
    paths = documented.get("paths") if isinstance(documented, dict) else None
    name = model or next(iter(cards or ()), "")
    asked = {"model": name, "prompt": TEXT, "add_special_tokens": False}
    chat = {"model": name, "messages": list(_CONVERSATION), "add_generation_prompt": True}
    encoding, plain, with_tools, vocabulary = await asyncio.gather(
        _ask_ids(client, url, asked),
        _ask_ids(client, url, chat),
        _ask_ids(client, url, {**chat, "tools": [_LOOK]}),
        _ask_vocabulary(client, url, name),
    )
    return ServerFacts(
        url=url,
        cards=cards,
        routes=frozenset(paths or ()),
        encoding=encoding,
        vocabulary=vocabulary,
        templates=(plain, with_tools),
    )


async def ask_weights(
    client: aiohttp.ClientSession, url: str, model: str
) -> tuple[Greedy, ...] | None:
    """Return a server's greedy tokens after some prompts; None where it tells no log-probabilities.

    None, too, for a server that does not agree with itself.
    """
    found = [await _ask_greedy(client, url, model, prompt) for prompt in _PROMPTS]
    again = await _ask_greedy(client, url, model, _PROMPTS[0])
    told = tuple(greedy for greedy in found if greedy)
    is_told = len(told) == len(_PROMPTS) and again
    return told if is_told and not describe_drift(told[0], again or (), _OWN_DRIFT) else None


def compare_weights(
    mine: Sequence[Greedy], theirs: Sequence[Greedy], tolerance: float, url: str
) -> str:
    """Return how two servers' greedy tokens differ; "" where at most one prompt's do.

    One may: two tokens that are about equally likely change places with the batch they are in.
    """
    drifts = [
        f"weights: after {prompt!r} {drift} at {url}"
        for prompt, a, b in zip(_PROMPTS, mine, theirs, strict=True)
        if (drift := describe_drift(a, b, tolerance))
    ]
    return drifts[0] if len(drifts) > 1 else ""


def describe_drift(mine: Greedy, theirs: Greedy, tolerance: float) -> str:
    """Return the first place in which greedy tokens differ, up to a late tie; "" for none."""
    for place, ((a, x), (b, y)) in enumerate(zip(mine, theirs, strict=False)):
        if a != b and place:
            return ""
        if a != b or abs(x - y) > tolerance:
            return f"it says {a!r} with log-probability {x:.3f}, and {b!r} with {y:.3f}"
    return ""


def describe_texts(mine: str, theirs: str) -> str:
    """Return where two texts differ, blanks aside; "" if they do not."""
    a, b = "".join(mine.split()), "".join(theirs.split())
    if a == b:
        return ""
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return f"{a[place : place + _SHOWN]!r} here and {b[place : place + _SHOWN]!r}"


def _compare_models(mine: ServerFacts, theirs: ServerFacts, model: str) -> str:
    if mine.cards is None or theirs.cards is None:
        return ""
    if model:
        is_missing = model in theirs.cards and model not in mine.cards
        return f"model: it has {sorted(mine.cards)}, and no {model!r}" if is_missing else ""
    own, other = (
        sorted(name for name, card in cards.items() if not card.get("parent"))
        for cards in (mine.cards, theirs.cards)
    )
    return "" if own == other else f"model: it has {own}, and {theirs.url} has {other}"


def _compare_encodings(mine: ServerFacts, theirs: ServerFacts) -> str:
    if mine.encoding is None or theirs.encoding is None or mine.encoding == theirs.encoding:
        return ""
    return f"tokenizer: {_first_difference(mine.encoding, theirs.encoding, theirs.url)}"


def _compare_vocabularies(mine: ServerFacts, theirs: ServerFacts) -> str:
    if mine.vocabulary is None or theirs.vocabulary is None:
        return ""
    if [r[:2] for r in mine.vocabulary] != [r[:2] for r in theirs.vocabulary]:
        num, other = (
            max((r[1] for r in v), default=0) for v in (mine.vocabulary, theirs.vocabulary)
        )
        return f"tokenizer: it has {num} ids, and {theirs.url} has {other}"
    for (start, end, a), (_, _, b) in zip(mine.vocabulary, theirs.vocabulary, strict=True):
        how = describe_texts(a, b)
        if how:
            return f"tokenizer: among ids {start} to {end - 1} is {how} at {theirs.url}"
    return ""


def _first_difference(mine: Sequence[int], theirs: Sequence[int], url: str) -> str:
    pairs = enumerate(zip(mine, theirs, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
    here, there = list(mine[place : place + 4]), list(theirs[place : place + 4])
    return f"the same text has, from token {place} on, ids {here} here and {there} at {url}"


async def _ask_json(
    client: aiohttp.ClientSession, url: str, body: Mapping[str, Any] | None = None
) -> Any:
    """Return the JSON of an answer; None for an error, a broken connection or no JSON.

    Raises `aiohttp.ClientConnectorError` for a server that cannot be reached.
    """
    try:
        status, content = await ask(client, url, body)
        return msgspec.json.decode(content) if status == 200 else None
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientError, msgspec.DecodeError):
        return None


async def _ask_ids(
    client: aiohttp.ClientSession, url: str, body: Mapping[str, Any]
) -> tuple[int, ...] | None:
    answer = await _ask_json(client, f"{url}/tokenize", body)
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    return tuple(ids) if isinstance(ids, list) and ids else None


async def _ask_vocabulary(client: aiohttp.ClientSession, url: str, model: str) -> Vocabulary | None:
    """Return the text of all ids of a server, in ranges, halved where it refuses one."""
    ranges: list[tuple[int, int, str]] = []
    start, size = 0, _RANGE
    while size and start < _MAX_IDS:
        body = {"model": model, "tokens": list(range(start, start + size))}
        answer = await _ask_json(client, f"{url}/detokenize", body)
        text = answer.get("prompt") if isinstance(answer, dict) else None
        if isinstance(text, str) and text:
            ranges.append((start, start + size, text))
            start += size
        elif start == 0 and answer is None and size < _RANGE // 64:
            return None
        else:
            size //= 2
    return tuple(ranges) or None


async def _ask_greedy(
    client: aiohttp.ClientSession, url: str, model: str, prompt: str
) -> Greedy | None:
    """Return the greedy tokens after a prompt, by the first route that tells them."""
    asked = {"model": model, "max_tokens": _NUM_GREEDY, "temperature": 0.0}
    bodies = {
        "/v1/completions": {**asked, "prompt": prompt, "logprobs": 0},
        "/v1/chat/completions": {
            **asked,
            "messages": [{"role": "user", "content": prompt}],
            "logprobs": True,
        },
    }
    for path, body in bodies.items():
        answer = await _ask_json(client, f"{url}{path}", body)
        try:
            told = answer["choices"][0]["logprobs"]
            if "content" in told:
                return tuple((str(t["token"]), float(t["logprob"])) for t in told["content"])
            pairs = zip(told["tokens"], told["token_logprobs"], strict=True)
            return tuple((str(token), float(value)) for token, value in pairs)
        except (KeyError, IndexError, TypeError, ValueError):
            continue
    return None

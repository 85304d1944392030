"""The handshake with a model server: at start, and whenever it comes back after a failure.

The first server that has the model is the reference; where prompts are rendered by the gateway, its
own tokenizer is one, too. A server whose model, tokenizer, chat template or weights differ is
refused, with what differs and how: another server may answer at a URL that was away for a while.
Weights are compared with those of a server that takes calls; where there is none, with the
reference's as they were at the same version. What a server does not tell is not checked.

Not here: what is asked and compared (`server_facts.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from katgym.gateway.config import GatewayConfig
from katgym.gateway.upstreams.server_facts import TEXT, ServerFacts, ask_facts, ask_weights
from katgym.gateway.upstreams.upstream import Upstream

logger = logging.getLogger(__name__)

WEIGHTS_TIMEOUT_S = 10.0
_MAX_AT_ONCE = 32


@dataclass
class Handshake:
    """Compares servers with the reference, which it keeps.

    version: returns that of the weights, None while they move.
    """

    config: GatewayConfig
    client: aiohttp.ClientSession
    version: Callable[[], int | None]
    reference: ServerFacts | None = None
    tokenizer: Any = None
    """The gateway's own, where it renders prompts."""
    _weights_version: int | None = None
    _own: ServerFacts | None = None
    """What the gateway's tokenizer makes of the reference's texts and ids."""

    async def ask_all(self, upstreams: Sequence[Upstream]) -> dict[Upstream, ServerFacts]:
        """Return what the servers that can be reached tell of themselves; open the others."""
        slots = asyncio.Semaphore(_MAX_AT_ONCE)

        async def one(upstream: Upstream) -> ServerFacts | None:
            async with slots:
                try:
                    return await self._ask(upstream)
                except (aiohttp.ClientError, OSError, TimeoutError) as e:
                    upstream.open(f"it cannot be reached ({type(e).__name__}: {e})")
                    return None

        found = await asyncio.gather(*(one(upstream) for upstream in upstreams))
        return {u: facts for u, facts in zip(upstreams, found, strict=True) if facts is not None}

    def choose_reference(self, facts: Sequence[ServerFacts]) -> ServerFacts | None:
        """Return the first server that has the model, or else the first."""
        having = (f for f in facts if self.config.model in (f.cards or ()))
        return next(having, facts[0] if facts else None)

    async def compare_all(self, met: dict[Upstream, ServerFacts]) -> None:
        """Refuse those servers that differ from the gateway's tokenizer or from the reference."""
        fitting = {}
        for upstream, facts in met.items():
            how = await self._compare_with_own(facts)
            refuse(upstream, how)
            if not how:
                fitting[upstream] = facts
        self.reference = self.choose_reference(list(fitting.values()))
        self._weights_version = self.version()
        for upstream, facts in fitting.items():
            refuse(upstream, self._compare(upstream, facts, self.reference))

    async def meet(self, upstream: Upstream, peer: Upstream | None) -> list[str]:
        """Return in what a server that comes back differs; raises what aiohttp raises.

        peer: a server that takes calls, whose weights it has to have.
        """
        facts = await self._ask(upstream)
        how = await self._compare_with_own(facts)
        reference = self.reference
        if how or reference is None:
            if not how:
                self.reference, self._weights_version = facts, self.version()
            return how
        if peer is not None:
            reference = replace(reference, url=peer.url, weights=await self._ask_weights(peer.url))
        elif self._weights_version != self.version():
            reference = replace(reference, weights=None)
        return self._compare(upstream, facts, reference)

    async def _ask(self, upstream: Upstream) -> ServerFacts:
        facts = await ask_facts(self.client, upstream.url, self.config.model)
        return replace(facts, weights=await self._ask_weights(upstream.url, facts))

    async def _ask_weights(self, url: str, facts: ServerFacts | None = None) -> Any:
        """Return a server's greedy tokens; None where it gives none in time."""
        facts = facts or self.reference
        if not self.config.weights_tolerance or self.version() is None:
            return None
        cards = (facts.cards if facts else None) or {}
        model = self.config.model
        if model not in cards:
            model = next(iter(cards), model)
        try:
            async with asyncio.timeout(WEIGHTS_TIMEOUT_S):
                return await ask_weights(self.client, url, model)
        except TimeoutError:
            return None

    def _compare(
        self, upstream: Upstream, facts: ServerFacts, reference: ServerFacts | None
    ) -> list[str]:
        """Return how a server differs, and note what was compared."""
        if reference is None:
            return []
        own = {} if self._own is None else self._own.parts
        upstream.identity = {
            part: "not checked"
            if not (is_told and (reference.parts[part] or own.get(part)))
            else ("reference" if facts is reference and not own.get(part) else "checked")
            for part, is_told in facts.parts.items()
        }
        if facts is reference:
            return []
        return facts.differences(
            reference, model=self.config.model, tolerance=self.config.weights_tolerance
        )

    async def _compare_with_own(self, facts: ServerFacts) -> list[str]:
        """Return how a server's tokenizer differs from the gateway's."""
        if self.tokenizer is None:
            return []
        ranges = [(start, end) for start, end, _ in facts.vocabulary or ()]
        if self._own is None or [r[:2] for r in self._own.vocabulary or ()] != ranges:
            self._own = await asyncio.to_thread(describe_tokenizer, self.tokenizer, ranges)
        return facts.differences(self._own, model="", tolerance=0)


def describe_tokenizer(tokenizer: Any, ranges: Sequence[tuple[int, int]]) -> ServerFacts:
    """Return what a tokenizer of this process makes of the text and the ids of a handshake."""
    num_ids = len(tokenizer)
    return ServerFacts(
        url="the gateway's tokenizer",
        encoding=tuple(tokenizer.encode(TEXT, add_special_tokens=False)),
        vocabulary=tuple(
            (start, end, tokenizer.decode(list(range(start, min(end, num_ids)))))
            for start, end in ranges
        )
        or None,
    )


def refuse(upstream: Upstream, differences: Sequence[str]) -> None:
    """Let a server take no calls for what differs, if anything does."""
    if differences:
        text = f"refused: {'; '.join(differences)}"
        if upstream.last_error != text:
            logger.error("model server %s is %s", upstream.url, text)
        upstream.refuse(text)

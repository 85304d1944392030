"""A client of one vLLM server that samples and scores token ids, over the best route it has.

Not here: bodies and answers (`token_api.py`); pausing and weights (`control.py`); conversations
(`katgym/policies/endpoints/vllm_client.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from katgym.policies.endpoints.http_retry import HttpClient
from katgym.vllm_server.token_api import (
    COMPLETIONS_ROUTE,
    GENERATE_ROUTE,
    SESSION_HEADER,
    SampledTokens,
    TokenRequest,
    completions_body,
    generate_body,
    parse_completions,
    parse_generate,
    parse_scores,
    score_body,
    top_logprob,
)


class TokenClient:
    """Samples from one server; shared by concurrent callers.

    has_generate: the server has `/inference/v1/generate` (`control.Abilities.has_generate`).
    name: who to name in errors.
    """

    def __init__(self, http: HttpClient, *, has_generate: bool = False, name: str = "") -> None:
        self.http = http
        self.has_generate = has_generate
        self.name = name or http.base_url

    async def generate(
        self, request: TokenRequest, *, session_id: str = "", version: int | None = None
    ) -> list[SampledTokens]:
        """Sample `request.num_completions` completions; raises `PolicyError`.

        version: of weights to which the server gives no number; see `parse_generate`.
        """
        headers = {SESSION_HEADER: session_id} if session_id else {}
        if self.has_generate:
            answer = await self.http.post(GENERATE_ROUTE, generate_body(request), **headers)
            return parse_generate(answer, source=self.name, version=version)
        answer = await self.http.post(COMPLETIONS_ROUTE, completions_body(request), **headers)
        return parse_completions(answer, source=self.name, version=version)

    async def score(self, model: str, token_ids: Sequence[int]) -> list[float]:
        """Return the model's log-probability of every token but the first.

        Not for servers with adapters: vLLM 0.32 ends with an error when one of them scores tokens
        while it samples others.
        """
        answer = await self.http.post(COMPLETIONS_ROUTE, score_body(model, token_ids))
        return parse_scores(answer, token_ids, source=self.name)

    async def top_logprob(self, request: TokenRequest) -> float:
        """Return the log-probability of the likeliest first token, as the server reports it."""
        route, body = COMPLETIONS_ROUTE, completions_body(request)
        if self.has_generate:
            route, body = GENERATE_ROUTE, generate_body(request)
        return top_logprob(await self.http.post(route, body), source=self.name)

"""`vllm:URL#MODEL`: a vLLM server, token ids in, token ids and log-probabilities out.

`vllm:http://host:8000#Qwen/Qwen3-0.6B?tokenizer=DIR&max_context_tokens=8192`. The server does
not see messages: prompts go as ids to `/inference/v1/generate` where the server has it, which also
tells the weight version of every token, else to `/v1/completions` (vLLM >= 0.10.2).

vLLM reports log-probabilities before the temperature unless it was started with
`--logprobs-mode processed_logprobs`. One probe finds out which it does; a combination with
`Sampling` that would record wrong numbers is refused.

Not here: starting servers, and what is posted to them (`katgym/vllm_server/`); pushing weights to
them (`katgym_trainer.weight_sync`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from katgym.errors import MissingDependencyError, PolicyError, UsageError, unknown_name

try:
    from transformers import AutoConfig, AutoTokenizer
except ImportError as e:
    raise MissingDependencyError(
        f"vllm: policies need {e.name!r} for the tokenizer. Install: pip install 'katgym[vllm]'"
    ) from e

from katgym.policies.base import Sampling
from katgym.policies.endpoints.http_retry import HttpClient, RetryConfig, bearer
from katgym.policies.expert_routes import first_told
from katgym.policies.model_source import model_source
from katgym.policies.rendering.chat_format import num_common
from katgym.policies.rendering.renderer_choice import choose_renderer
from katgym.policies.token_policy import Generated, TokenPolicy
from katgym.policies.uri_options import parse_options
from katgym.policies.version_span import one_span
from katgym.policies.waiting import HeldRequests
from katgym.system.sync import run_sync
from katgym.vllm_server.control import VllmControl
from katgym.vllm_server.failure_hints import answer_hint
from katgym.vllm_server.token_api import TokenRequest
from katgym.vllm_server.token_client import TokenClient

logger = logging.getLogger(__name__)

FORM = "vllm:URL#MODEL[?option=value&...], as in vllm:http://localhost:8000#Qwen/Qwen3-0.6B"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """Options of a `vllm:` policy; the same names stand in the URI."""

    tokenizer: str = ""
    """Directory or hub id with tokenizer and `config.json`; "" takes the server's model path."""
    renderer: str = ""
    """Renderer to use; "" chooses by the model."""
    max_context_tokens: int = 0
    """Prompt plus completion tokens of one call; 0 takes the server's limit."""
    max_concurrency: int = 256
    """Requests in flight."""
    timeout_s: float = 600.0
    """Wall seconds for one attempt of one request."""
    max_retries: int = 5
    """Attempts after the first, on 408, 429, 5xx and broken connections."""


class AbortedError(PolicyError):
    """The server was told to give a request up; `generated` is what it had sampled."""

    def __init__(self, message: str, *, generated: Generated) -> None:
        super().__init__(message)
        self.generated = generated

    def __reduce__(self) -> Any:
        return _aborted, (str(self), self.generated)


def _aborted(message: str, generated: Generated) -> AbortedError:
    return AbortedError(message, generated=generated)


class VllmPolicy(TokenPolicy):
    """Plays through a vLLM server.

    Made by `connect`, which asks the server for the model and its routes. Completions say which
    weights sampled which token where the server tells, by a number. Any other token is stamped with
    `policy_version` as it was when the request went out; whoever updates the weights sets it, or
    the model's name with it (`use_adapter`).
    """

    def __init__(
        self,
        http: HttpClient,
        model: str,
        tokenizer: Any,
        *,
        name: str,
        config: VllmConfig,
        model_type: str = "",
        has_generate: bool = False,
    ) -> None:
        self.name = name
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.policy_version = 0
        self.is_adapter = False
        """Whether `model` is an adapter that has its version's weights alone."""
        self.vocab_size = len(tokenizer)
        self.max_context_tokens = config.max_context_tokens
        self.renderer = choose_renderer(tokenizer, name=config.renderer, model_type=model_type)
        self.stop_ids = self.renderer.get_stop_token_ids()
        self.held = HeldRequests()
        """What the server is being asked; whoever pauses it says so here."""
        self._client = TokenClient(http, has_generate=has_generate, name=f"policy {name!r}")
        self._is_processed: bool | None = None
        self._told: dict[str, list[int]] = {}
        """Tokens of each session's last call, of servers that tell their experts."""

    @classmethod
    def connect(
        cls, url: str, model: str, *, name: str, config: VllmConfig, token: str = ""
    ) -> VllmPolicy:
        """Ask the server for `model` and load its tokenizer; blocks for as long as that takes.

        token: of a server that a training run has started.
        Raises `UsageError` when the server has no such model, `PolicyError` when it is down.
        """
        http = HttpClient(
            base_url=url,
            retry=RetryConfig(timeout_s=config.timeout_s, max_retries=config.max_retries),
            headers=bearer(token),
            max_connections=config.max_concurrency,
            explain=answer_hint,
        )
        card, has_generate = run_sync(_ask_server(http, model))
        source = model_source(config.tokenizer or card.get("root") or model)
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(source)
            model_config = AutoConfig.from_pretrained(source)
        except (OSError, ValueError) as e:
            raise UsageError(
                f"cannot load the tokenizer {source!r}: {e}. Name one with ?tokenizer=DIR"
            ) from e
        policy = cls(
            http,
            model,
            tokenizer,
            name=name,
            config=config,
            model_type=model_config.model_type,
            has_generate=has_generate,
        )
        # Models pad their vocabulary, and may sample an id that no token has.
        policy.vocab_size = max(policy.vocab_size, model_config.get_text_config().vocab_size)
        own_limit = int(card.get("max_model_len") or 4096)
        policy.max_context_tokens = min(config.max_context_tokens or own_limit, own_limit)
        return policy

    def use_adapter(self, model: str, version: int) -> None:
        """Ask for an adapter from here on; what runs goes on as what it was asked for."""
        self.model, self.policy_version, self.is_adapter = model, version, True

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        await self._check_sampling(sampling)
        request = TokenRequest(
            model=self.model,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=seed,
            stop_token_ids=self.stop_ids,
            routes_start=first_told(num_common(self._told.get(session_id, []), list(prompt_ids))),
        )
        version, is_adapter = self.policy_version, self.is_adapter  # the model's, as asked for
        with self.held.asking():
            sampled, *_ = await self._client.generate(
                request, session_id=session_id, version=version
            )
        if not sampled.is_verified:
            raise PolicyError(
                f"policy {self.name!r}: the server samples from weights whose sync failed; sync"
                " again, or restart it"
            )
        generated = Generated(
            token_ids=sampled.token_ids,
            policy_logprobs=sampled.policy_logprobs,
            finish_reason=sampled.finish_reason,
            version_spans=one_span(version, len(sampled.token_ids))
            if is_adapter  # the server labels the weights below it
            else sampled.version_spans,
            routes=sampled.routes,
        )
        if sampled.finish_reason == "abort":
            raise AbortedError(
                f"policy {self.name!r}: the server gave the request up after"
                f" {len(sampled.token_ids)} tokens, as it does for pause(abort)",
                generated=generated,
            )
        if sampled.routes:
            self._told[session_id] = [*prompt_ids, *sampled.token_ids]
        return generated

    def release(self, session_id: str) -> None:
        self._told.pop(session_id, None)

    async def aclose(self) -> None:
        await self._client.http.aclose()

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": self.model,
            "url": self._client.http.base_url,
            "has_generate": self._client.has_generate,
            "tokenizer": self.tokenizer.name_or_path,
            "renderer": type(self.renderer).__name__,
            "max_context_tokens": self.max_context_tokens,
        }

    async def _check_sampling(self, sampling: Sampling) -> None:
        """Refuse what the server would report wrong log-probabilities for."""
        is_truncated = sampling.top_p < 1 or sampling.top_k > 0
        is_scaled = sampling.temperature not in (0.0, 1.0)
        if not is_truncated and not is_scaled:
            return
        if self._is_processed is None:
            # Do the server's log-probabilities depend on the temperature?
            top = [
                await self._client.top_logprob(
                    TokenRequest(
                        model=self.model,
                        prompt_ids=[self.stop_ids[0]],
                        max_tokens=1,
                        sampling=Sampling(temperature=temperature),
                        num_top_logprobs=1,
                    )
                )
                for temperature in (0.5, 2.0)
            ]
            self._is_processed = abs(top[0] - top[1]) > 1e-4
        mode = "processed_logprobs" if self._is_processed else "raw_logprobs"
        if is_scaled and not self._is_processed:
            raise PolicyError(
                f"policy {self.name!r}: at temperature {sampling.temperature!r} this server would"
                f" report log-probabilities of temperature 1 (its mode is {mode}). Start it with"
                " --logprobs-mode processed_logprobs, or sample at temperature 1.",
                kind="policy_rejected",
            )
        if is_truncated and self._is_processed:
            raise PolicyError(
                f"policy {self.name!r}: with top_p or top_k this server would report"
                f" log-probabilities of the truncated distribution (its mode is {mode}). Use"
                " top_p=1 and top_k=0, or start it with --logprobs-mode raw_logprobs.",
                kind="policy_rejected",
            )


def from_uri(rest: str) -> VllmPolicy:
    """Return the policy of `vllm:{rest}`."""
    head, config = parse_options(rest, VllmConfig, form=FORM)
    url, _, model = head.partition("#")
    if not url.startswith(("http://", "https://")) or not model:
        raise UsageError(f"cannot read policy 'vllm:{rest}'; its form is {FORM}")
    return VllmPolicy.connect(
        url.rstrip("/").removesuffix("/v1"), model, name=f"vllm:{rest}", config=config
    )


async def _ask_server(http: HttpClient, model: str) -> tuple[dict[str, Any], bool]:
    """Return the model's card, and whether the server has the route that tells versions."""
    control = VllmControl(http)
    try:
        cards = await control.models()
        if model not in cards:
            raise UsageError(unknown_name(f"model at {http.base_url}", model, cards))
        # An adapter has the tokenizer and the limit of the model it belongs to.
        card = cards.get(str(cards[model].get("parent")), cards[model])
        try:
            return card, (await control.abilities()).has_generate
        except PolicyError as e:
            logger.warning("%s; sampling from /v1/completions, which tells no versions", e)
            return card, False
    finally:
        await http.aclose()

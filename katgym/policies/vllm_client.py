"""`vllm:URL#MODEL`: a vLLM server, token ids in, token ids and log-probabilities out.

`vllm:http://host:8000#Qwen/Qwen3-0.6B?tokenizer=DIR&max_context_tokens=8192`. The server does
not see messages: prompts go to `/v1/completions` as ids (vLLM >= 0.10.2).

vLLM reports log-probabilities before the temperature unless it was started with
`--logprobs-mode processed_logprobs`. One probe finds out which it does; a combination with
`Sampling` that would record wrong numbers is refused.

Not here: starting servers; pushing weights to them.
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
from katgym.policies.http_retry import HttpClient, RetryConfig
from katgym.policies.renderer_choice import choose_renderer
from katgym.policies.token_policy import Generated, TokenPolicy
from katgym.policies.uri_options import parse_options
from katgym.sync import run_sync

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
    """Attempts after the first, on 429, 5xx and broken connections."""


class VllmPolicy(TokenPolicy):
    """Plays through a vLLM server.

    Made by `connect`, which asks the server for the model; `policy_version` is what completions
    are stamped with, and is set by whoever updates the server's weights.
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
    ) -> None:
        self.name = name
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self.policy_version = 0
        self.vocab_size = len(tokenizer)
        self.max_context_tokens = config.max_context_tokens
        self.renderer = choose_renderer(tokenizer, name=config.renderer, model_type=model_type)
        self.stop_ids = self.renderer.get_stop_token_ids()
        self._http = http
        self._is_processed: bool | None = None

    @classmethod
    def connect(cls, url: str, model: str, *, name: str, config: VllmConfig) -> VllmPolicy:
        """Ask the server for `model` and load its tokenizer; blocks for as long as that takes.

        Raises `UsageError` when the server has no such model, `PolicyError` when it is down.
        """
        http = HttpClient(
            base_url=url,
            retry=RetryConfig(timeout_s=config.timeout_s, max_retries=config.max_retries),
            max_connections=config.max_concurrency,
        )
        card = run_sync(_model_card(http, model))
        source = config.tokenizer or card.get("root") or model
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(source)
            model_config = AutoConfig.from_pretrained(source)
        except (OSError, ValueError) as e:
            raise UsageError(
                f"cannot load the tokenizer {source!r}: {e}. Name one with ?tokenizer=DIR"
            ) from e
        policy = cls(
            http, model, tokenizer, name=name, config=config, model_type=model_config.model_type
        )
        # Models pad their vocabulary, and may sample an id that no token has.
        policy.vocab_size = max(policy.vocab_size, model_config.get_text_config().vocab_size)
        own_limit = int(card.get("max_model_len") or 4096)
        policy.max_context_tokens = min(config.max_context_tokens or own_limit, own_limit)
        return policy

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
        version = self.policy_version
        body = self._body(prompt_ids, sampling, max_tokens)
        if seed is not None:
            body["seed"] = seed
        answer = await self._http.post("/v1/completions", body, **{"X-Session-ID": session_id})
        return self._generated(answer, version)

    async def aclose(self) -> None:
        await self._http.aclose()

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": self.model,
            "url": self._http.base_url,
            "tokenizer": self.tokenizer.name_or_path,
            "renderer": type(self.renderer).__name__,
            "max_context_tokens": self.max_context_tokens,
        }

    def _body(
        self, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": list(self.stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }

    def _generated(self, answer: Any, version: int) -> Generated:
        try:
            choice = answer["choices"][0]
            ids, logprobs = choice["token_ids"], choice["logprobs"]
            reason = choice["finish_reason"]
            values = logprobs["token_logprobs"] if logprobs else []
        except (KeyError, IndexError, TypeError) as e:
            hint = " (it needs vLLM >= 0.10.2)" if "token_ids" in str(e) else ""
            raise PolicyError(
                f"policy {self.name!r}: the answer has no {e}{hint}: {answer!s:.300}",
                kind="policy_bad_response",
            ) from e
        if not isinstance(ids, list) or not isinstance(values, list):
            raise PolicyError(
                f"policy {self.name!r}: token_ids and token_logprobs are lists, got"
                f" {ids!s:.100} and {values!s:.100}",
                kind="policy_bad_response",
            )
        return Generated(
            token_ids=ids,
            policy_logprobs=values,
            finish_reason="length" if reason == "length" else "stop",
            policy_version=version,
        )

    async def _check_sampling(self, sampling: Sampling) -> None:
        """Refuse what the server would report wrong log-probabilities for."""
        is_truncated = sampling.top_p < 1 or sampling.top_k > 0
        is_scaled = sampling.temperature not in (0.0, 1.0)
        if not is_truncated and not is_scaled:
            return
        if self._is_processed is None:
            self._is_processed = await self._probe()
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

    async def _probe(self) -> bool:
        """Return whether the server's log-probabilities depend on the temperature."""
        top: list[float] = []
        for temperature in (0.5, 2.0):
            body = self._body([self.stop_ids[0]], Sampling(temperature=temperature), 1)
            answer = await self._http.post("/v1/completions", {**body, "logprobs": 1})
            try:
                top.append(max(answer["choices"][0]["logprobs"]["top_logprobs"][0].values()))
            except (KeyError, IndexError, TypeError) as e:
                raise PolicyError(
                    f"policy {self.name!r}: the answer has no top_logprobs: {answer!s:.300}",
                    kind="policy_no_logprobs",
                ) from e
        return abs(top[0] - top[1]) > 1e-4


def from_uri(rest: str) -> VllmPolicy:
    """Return the policy of `vllm:{rest}`."""
    head, config = parse_options(rest, VllmConfig, form=FORM)
    url, _, model = head.partition("#")
    if not url.startswith(("http://", "https://")) or not model:
        raise UsageError(f"cannot read policy 'vllm:{rest}'; its form is {FORM}")
    return VllmPolicy.connect(
        url.rstrip("/").removesuffix("/v1"), model, name=f"vllm:{rest}", config=config
    )


async def _model_card(http: HttpClient, model: str) -> dict[str, Any]:
    answer = await http.get("/v1/models")
    try:
        cards = {card["id"]: card for card in answer["data"]}
    except (KeyError, TypeError) as e:
        raise PolicyError(
            f"{http.base_url}/v1/models answered no list of models: {answer!s:.300}",
            kind="policy_bad_response",
        ) from e
    finally:
        await http.aclose()
    if model not in cards:
        raise UsageError(unknown_name(f"model at {http.base_url}", model, cards))
    return dict(cards[model])

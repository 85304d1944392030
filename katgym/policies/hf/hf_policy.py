"""`hf:MODEL`: a transformers causal LM in this process, batched over concurrent episodes.

MODEL is a directory or a hub id, with options behind `?`:
`hf:Qwen/Qwen3-0.6B?dtype=bfloat16&device=cuda&max_context_tokens=8192`.

Not here: the batching itself (`hf_engine.py`); serving on many GPUs (`vllm_client.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.errors import MissingDependencyError, UsageError

try:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as e:
    raise MissingDependencyError(
        f"hf: policies need {e.name!r}. Install: pip install 'katgym[hf]'"
    ) from e

from katgym.play.rollout import Rollout
from katgym.policies.base import Sampling
from katgym.policies.hf.hf_engine import BatchEngine, HfEngineConfig
from katgym.policies.hf.hf_request import Request
from katgym.policies.hf.sampler import uniforms
from katgym.policies.hf.token_scoring import score_rollout
from katgym.policies.model_source import check_model, model_source
from katgym.policies.rendering.renderer_choice import choose_renderer
from katgym.policies.token_policy import Generated, TokenPolicy
from katgym.policies.token_scores import TokenScores, Tolerance
from katgym.policies.uri_options import parse_options

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class HfConfig(HfEngineConfig):
    """Options of a `hf:` policy, with those of its engine; the same names stand in the URI."""

    dtype: str = ""
    """`float32`, `bfloat16` or `float16`; "" is float32 on a CPU, bfloat16 elsewhere."""
    device: str = ""
    """A torch device; "" is `cuda` where there is one, else `cpu`."""
    renderer: str = ""
    """Renderer to use; "" chooses by the model."""
    max_context_tokens: int = 4096
    """Prompt plus completion tokens of one call; never more than the model's own limit."""

    def __post_init__(self) -> None:
        HfEngineConfig.__post_init__(self)
        if self.dtype and self.dtype not in DTYPES:
            raise UsageError(f"dtype is one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.max_context_tokens < 2:
            raise UsageError(f"max_context_tokens is >= 2, got {self.max_context_tokens!r}")


class HfPolicy(TokenPolicy):
    """Plays with a transformers model.

    The model is shared, not copied: a learner may train the same object and announce it with
    `update_weights`. It has to use full attention in every layer.
    """

    holds_model = True

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "hf", config: HfConfig | None = None
    ) -> None:
        self.name = name
        self.config = config or HfConfig()
        self.model = model
        self.tokenizer = tokenizer
        text_config = model.config.get_text_config()
        kinds = set(getattr(text_config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UsageError(
                f"policy {name!r}: the model's layers are {sorted(kinds)!r}, this policy runs"
                " 'full_attention' only. Serve it with vLLM: vllm:URL#MODEL."
            )
        self.vocab_size = text_config.vocab_size
        own_limit = getattr(text_config, "max_position_embeddings", self.config.max_context_tokens)
        self.max_context_tokens = min(self.config.max_context_tokens, own_limit)
        self.renderer = choose_renderer(
            tokenizer, name=self.config.renderer, model_type=model.config.model_type
        )
        self.stop_ids = frozenset(self.renderer.get_stop_token_ids())
        self.engine = BatchEngine(model, self.config)

    @classmethod
    def load(cls, model: str, *, name: str = "", config: HfConfig | None = None) -> HfPolicy:
        """Load a directory, hub id or `smollm2`; `UsageError` when there is no model there."""
        config = config or HfConfig()
        device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = DTYPES[config.dtype or ("float32" if device == "cpu" else "bfloat16")]
        source, where = model_source(model), {"local_files_only": check_model(model)}
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **where)
            tokenizer = AutoTokenizer.from_pretrained(source, **where)
        except (OSError, ValueError) as e:
            kind = "directory" if Path(model).is_dir() else "hub id"
            raise UsageError(f"cannot load {model!r} as a {kind}: {e}") from e
        loaded.to(device).eval()
        return cls(loaded, tokenizer, name=name or f"hf:{model}", config=config)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        request = Request(
            ids=list(prompt_ids),
            max_tokens=max_tokens,
            stop_ids=self.stop_ids,
            sampling=sampling,
            uniforms=uniforms(seed),
            session_id=session_id,
        )
        return await self.engine.generate(request)

    async def update_weights(
        self, fn: Callable[[], None], *, policy_version: int, is_immediate: bool = False
    ) -> None:
        """Call `fn`, which changes the model's weights, once no request is running.

        Later completions carry `policy_version`. All kept keys and values are dropped.
        is_immediate: `fn` is called before the next token instead, and requests that run go on with
        the new weights: all they have so far is computed again. Their `Generated.version_spans` say
        which weights sampled which tokens; `policy_version` is the oldest.
        """
        await self.engine.update(fn, policy_version, is_immediate=is_immediate)

    def release(self, session_id: str) -> None:
        self.engine.release(session_id)

    def score_rollout(
        self, rollout: Rollout, tolerance: Tolerance, *, has_draws: bool
    ) -> TokenScores:
        return score_rollout(self.model, rollout, tolerance, has_draws=has_draws)

    async def aclose(self) -> None:
        self.engine.close()

    def describe(self) -> dict[str, Any]:
        parameter = next(self.model.parameters())
        return {
            "name": self.name,
            "model": self.model.config._name_or_path,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": str(parameter.device),
            "renderer": type(self.renderer).__name__,
            "max_context_tokens": self.max_context_tokens,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }


def from_uri(rest: str) -> HfPolicy:
    """Return the policy of `hf:{rest}`."""
    model, config = parse_options(rest, HfConfig, form="hf:MODEL[?option=value&...]")
    return HfPolicy.load(model, name=f"hf:{rest}", config=config)


def smollm2_from_uri(rest: str) -> HfPolicy:
    """Return the policy of `smollm2[?option=value&...]`; options are those of `hf:`."""
    from katgym.policies.hf.smollm2 import model_directory  # here, as it needs gguf

    _, config = parse_options(f"smollm2{rest}", HfConfig, form="smollm2[?option=value&...]")
    return HfPolicy.load(str(model_directory()), name=f"smollm2{rest}", config=config)

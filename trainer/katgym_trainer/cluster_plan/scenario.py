"""A run on given nodes as it is simulated: what its file says, servers, rates of its model.

Not here: what happens in it (`simulation.py`), where rates and sizes that no file tells come from
(`assumptions.py`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.policies.model_source import model_source
from katgym_trainer.cluster_plan.assumptions import Assumptions
from katgym_trainer.cluster_plan.model_server import ServerRates
from katgym_trainer.config.rl_config import PolicyConfig, RlConfig, RolloutsConfig, SyncKind
from katgym_trainer.config.server_config import ServerConfig, ServerTag


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated: a run, or one of several alike parts of it."""

    rollouts: RolloutsConfig
    policy: PolicyConfig
    servers: Sequence[ServerRates]
    train_gpus: int
    train_rate: float
    """Packed tokens a second of all of them."""
    sync_bytes: float
    is_overlapped: bool = False
    """Whether the trainer goes on while servers read weights and these are checked."""
    assumed: Assumptions = field(default_factory=Assumptions)
    num_parts: int = 1

    @property
    def placement(self) -> str:
        """Who shares devices with the trainer, in the field's words."""
        shared = [server.is_shared for server in self.servers]
        if all(shared):
            return "colocated"
        return "multiplexed" if any(shared) else "disaggregated"

    @property
    def gpus(self) -> int:
        """GPUs of this part; those of shared servers are the trainer's."""
        apart = sum(server.gpus for server in self.servers if not server.is_shared)
        return apart + max(self.train_gpus, self.sampling_gpus - apart)

    @property
    def sampling_gpus(self) -> int:
        """GPUs of this part that have a server."""
        return sum(server.gpus for server in self.servers)

    @classmethod
    def of(cls, config: RlConfig, assumed: Assumptions) -> Scenario:
        """Return what a file describes; `UsageError` if nothing tells the model's size."""
        shape = _read_shape(config.model.path, assumed)
        # In this process the trainer's own object plays, or a copy where both work at once.
        tags = (ServerTag.ROLLOUT, ServerTag.TRAIN)[: 1 + (config.rollouts.max_staleness == 0)]
        placed = config.policy.placed or (ServerConfig(tags=tags),)
        servers = [_rates(where, shape, assumed) for where in placed] * assumed.copies
        shared = sum(server.gpus for server in servers if server.is_shared)
        train_gpus = assumed.train_gpus * assumed.copies or shared or assumed.copies
        lora, size = config.trainer_config().lora_rank, shape["weights"]
        # The trainer's model may change once all its weights are in files; one process keeps a copy
        # of adapters, which are checked against it.
        overlaps = not config.policy.sync.backend
        if lora and config.policy.sync is not SyncKind.RELOAD:
            overlaps = config.cluster is None or config.cluster.trainer_ranks < 2
            size = 14 * lora * (size / 12) ** 0.5  # two factors of seven matrices a layer
        rate = assumed.train_rate or assumed.train_flops / (6 * shape["active"])
        workers = config.cluster.rollout_workers if config.cluster is not None else 1
        # A part has whole servers, ranks and groups.
        apart = sum(server.gpus for server in servers if not server.is_shared)
        enough = (apart + max(train_gpus, shared)) / assumed.simulated_gpus
        common = math.gcd(assumed.copies, config.rollouts.num_groups)
        parts = [n for n in range(1, common + 1) if common % n == 0]
        num_parts = next((n for n in parts if n >= enough), common)
        rollouts = dataclasses.replace(
            config.rollouts,
            num_groups=config.rollouts.num_groups // num_parts,
            max_concurrency=math.ceil(config.rollouts.max_concurrency / num_parts),
            max_offered=0,
        )
        return cls(
            rollouts=rollouts,
            policy=config.policy,
            servers=servers[: len(servers) // num_parts],
            train_gpus=train_gpus // num_parts,
            train_rate=rate * train_gpus / num_parts,
            sync_bytes=2 * size,
            is_overlapped=overlaps and config.rollouts.max_staleness > 0,
            assumed=dataclasses.replace(assumed, loops=assumed.loops or workers),
            num_parts=num_parts,
        )


def _rates(where: ServerConfig, shape: Mapping[str, float], assumed: Assumptions) -> ServerRates:
    """Return how fast a server is.

    round_s = 2 weights / decode_bytes
    sequence_s = 2 active / prefill_flops + context bytes / decode_bytes
    """
    gpus = len(where.devices.split(",")) if where.devices else where.gpus or assumed.gpus_per_server
    turn = assumed.answer_tokens + assumed.observation_tokens
    context = assumed.prompt_tokens + assumed.turns * turn / 2
    token_s = 2 * shape["active"] / assumed.prefill_flops
    sequence_s = token_s + context * shape["bytes"] / assumed.decode_bytes
    if assumed.decode_many:
        sequence_s = 1 / assumed.decode_many
    round_s = 2 * shape["weights"] / assumed.decode_bytes / gpus
    if assumed.decode_one:
        round_s = max(0.0, 1 / assumed.decode_one - sequence_s / gpus)
    return ServerRates(
        gpus=gpus,
        is_shared=where.is_shared,
        round_s=round_s,
        sequence_s=sequence_s / gpus,
        prefill=gpus * (assumed.prefill_rate or 1 / token_s),
        max_running=assumed.max_running,
    )


def _read_shape(path: str, assumed: Assumptions) -> Mapping[str, float]:
    """Return a model's weights, those that a token goes through, and bytes of its keys and values.

    Example:
        {"weights": 32.8e9, "active": 32e9, "bytes": 262144}
    """
    if assumed.weights:
        # As of grouped heads.
        return {
            "weights": assumed.weights, "active": assumed.weights, "bytes": assumed.weights**0.5
        }  # fmt: skip
    file = Path(model_source(path)) / "config.json"
    try:
        raw = json.loads(file.read_text("utf-8"))
        config: dict[str, Any] = {**raw, **(raw.get("text_config") or {})}
        width, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        heads = int(config["num_attention_heads"])
        head = int(config.get("head_dim") or width // heads)
        groups = int(config.get("num_key_value_heads") or heads)
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        inner = (experts and config.get("moe_intermediate_size")) or config["intermediate_size"]
        expert, used = 3 * width * int(inner), int(config.get("num_experts_per_tok") or 1)
        table = width * int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(
            f"{str(file)!r} does not tell the model's shape ({type(e).__name__}: {e}): download the"
            " model into a folder, or say how large it is: --set weights=32e9"
        ) from e
    attention = 2 * width * head * (heads + groups)
    return {
        "weights": layers * (attention + expert * max(1, experts)) + 2 * table,
        "active": layers * (attention + expert * (used if experts else 1)) + table,
        "bytes": 4 * layers * groups * head,
    }

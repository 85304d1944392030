"""Assumptions of a prediction beyond the run's file, by names that a command line can set.

Each is documented as `unit, source: what it is`; the source is a file of ours that measured it, or
`assumed`. Not here: what is read from the file (`scenario.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.errors import UsageError
from katgym_trainer.config.rules import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Share,
    check_fields,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Keys of `katgym cluster plan CONFIG --set NAME=VALUE`."""

    turns: Positive = 20.0
    """model calls, assumed: of an episode, on average; [rollouts] max_turns bounds it."""
    turns_sigma: NotNegative = 0.8
    """of the logarithm, assumed: how unlike episodes are."""
    prompt_tokens: Count = 2000
    """tokens, assumed: before the first turn."""
    answer_tokens: Positive = 400.0
    """tokens, assumed: sampled a turn, on average; [policy] max_tokens bounds it."""
    answer_sigma: NotNegative = 0.6
    """of the logarithm, assumed: how unlike answers are."""
    observation_tokens: NotNegative = 1000.0
    """tokens, assumed: read after a turn."""
    env_s: NotNegative = 6.0
    """s, assumed: an env's answer to a turn, on average."""
    grade_s: NotNegative = 20.0
    """s, assumed: after an episode, on average."""
    env_sigma: NotNegative = 1.2
    """of the logarithm, assumed: the tail of env_s and grade_s."""
    shared_prefix: Share = 0.35
    """of flat tokens, assumed: what packing computes once instead of several times."""

    copies: Count = 1
    """times, assumed: the file's servers and the trainer's ranks are there so often."""
    train_gpus: CountOrZero = 0
    """GPUs, assumed: ranks of the trainer; 0: as many as servers with tag 'train' have, or 1."""
    gpus_per_server: Count = 1
    """GPUs, assumed: of a server that names neither devices nor gpus."""
    gpus_per_node: Count = 8
    """GPUs, assumed: nodes are paid for whole."""
    gpu_hour: NotNegative = 2.5
    """dollars, assumed: of a GPU."""
    weights: NotNegative = 0.0
    """weights, assumed: of the model; 0: by its config.json."""
    train_flops: Positive = 3.5e14
    """operations/s, assumed: 35 % of an H100's data sheet; 6 a packed token and weight."""
    prefill_flops: Positive = 5e14
    """operations/s, assumed: half of an H100's; 2 a token and weight, sampled ones too."""
    decode_bytes: Positive = 2e12
    """bytes/s, assumed: 60 % of an H100's: all weights a round, keys and values a sequence."""
    train_rate: NotNegative = 0.0
    """packed tokens/s, assumed: of a GPU; 0: by train_flops."""
    prefill_rate: NotNegative = 0.0
    """tokens/s, assumed: of a server's GPU; 0: by prefill_flops."""
    decode_one: NotNegative = 0.0
    """tokens/s, assumed: of a sequence alone on a server; 0: by decode_bytes."""
    decode_many: NotNegative = 0.0
    """tokens/s, assumed: of a server's GPU, very many sequences together; 0: by decode_bytes."""
    trainer_speed: Positive = 1.0
    """times, assumed: as fast as the rates above say."""
    sampler_speed: Positive = 1.0
    """times, assumed: as fast as the rates above say."""
    max_running: Count = 256
    """requests, katgym/policies/endpoints/vllm_client.py: in a server at a time; others wait."""
    step_s: NotNegative = 3.0
    """s, assumed: of a step beyond forward and backward: optimizer, collectives."""

    write_rate: Positive = 2e9
    """bytes/s, assumed: weights into files; two cores write 185e6 (weight_sync_cpu.csv)."""
    read_rate: Positive = 2e9
    """bytes/s, assumed: out of them, while servers stand; two cores read 465e6."""
    probe_s: NotNegative = 1.0
    """s, assumed: until new weights are checked."""
    sleep_s: NotNegative = 1.0
    """s, assumed: until servers with tag 'train' have freed their devices."""

    loop_turn_s: NotNegative = 150e-6
    """s, benchmarks/rollouts.csv: CPU of a turn of the agent loop."""
    loops: CountOrZero = 0
    """processes, assumed: of agent loops; 0: [cluster] rollout_workers, or 1."""
    gateway_call_s: NotNegative = 806e-6
    """s, benchmarks/gateway.csv: CPU of a call of 576 tokens through a gateway."""
    gateway_token_s: NotNegative = 0.13e-6
    """s, assumed: more for each further token."""
    gateways: Count = 1
    """processes, assumed: of gateways, where a store's groups come through one."""
    store_turn_s: NotNegative = 208e-6
    """s, benchmarks/rollout_store.csv: of a step, for each turn that is kept."""
    rows_token_s: NotNegative = 0.19e-6
    """s, assumed: rows made by the first rank, for a flat token."""
    pack_token_s: NotNegative = 0.16e-6
    """s, trainer/benchmarks/rank_shares.csv: packing, divided among ranks, for a flat token."""

    hand_over: bool = True
    """rule, assumed: who goes to sleep hands running requests over; not where experts are told."""

    steps: Count = 12
    """steps, assumed: simulated; the first third is left out."""
    simulated_gpus: Count = 64
    """GPUs, assumed: of more, one of several alike parts is simulated."""
    seed: CountOrZero = 0
    """number, assumed: of all that is drawn."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)

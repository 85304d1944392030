"""Families of transformers on forests: which can be trained, how exactly, and why others cannot.

    python trainer/benchmarks/model_families.py                  # all, into model_families.csv
    python trainer/benchmarks/model_families.py qwen3_5_text lfm2      # these rows of it alone

Of each family a tiny model with random weights takes one gradient row by row, as transformers runs
it, and one on a forest, whole and in parts; each in a process of its own with a time limit. For
layers that compute in chunks, `noise` is what another chunk size of the same formula makes of the
row-by-row gradient. In bfloat16, as a trainer makes a model ready for it, forest, parts and rows
stand beside the rows in float32; the loss is then `sft`, which has no clip that rounding flips. A
router's choice may flip, in the rows or in the forest, and then an expert is another: weights of
several seeds are tried, as a fault is one with all of them. Not here: time (`steps.py`).
"""

from __future__ import annotations

import argparse
import copy
import csv
import inspect
import multiprocessing
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import katgym_trainer as kt
from katgym_trainer.models.preparation import load_and_prepare

NAMES = """
afmoe apertus arcee axk1 axk2 bailing_hybrid bamba biogpt bitnet bloom codegen cohere cohere2
cohere2_moe cohere_compass_text cwm dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffllama
doge dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon falcon_h1 falcon_mamba flex_olmo gemma
gemma2 gemma3_text gemma3n_text gemma4_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2
gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe
granitemoe_swa granitemoehybrid granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe
hy_v3 hy_v4 hyperclovax inkling_text inkling2_text internlm3 iquestcoder jais2 jamba jetmoe
kimi_linear kolibri1 laguna lfm2 lfm2_moe lfm3 llama llama4_text longcat_flash mamba mamba2 mellum
mimo_v2_flash minicpm3 minimax minimax_m2 ministral ministral3 mistral mixtral mpt nanochat nemotron
nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3
qwen3_5_text qwen3_5_moe_text qwen3_moe qwen3_next qwen4_exp_text recurrent_gemma rwkv seed_oss
smollm3 solar_open stablelm starcoder2 vaultgemma xglm xlstm youtu zamba zamba2 zaya
""".split()  # noqa: SIM905 - a list of 120 literals is harder to read
SMALL = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "dropout": 0.0, "activation_dropout": 0.0, "resid_dropout": 0.0,
    "embed_dropout": 0.0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "layerdrop": 0.0, "residual_dropout": 0.0, "router_jitter_noise": 0.0,
    "input_jitter_noise": 0.0,
    # mixtures of experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "shared_expert_intermediate_size": 32, "moe_num_experts": 4,
    "moe_k": 2, "moe_num_shared_experts": 1, "router_aux_loss_coef": 0.0,
    # recurrent layers
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_heads": 4, "linear_head_dim": 16,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1,
    "mamba_expand": 2, "mamba_chunk_size": 16, "shared_intermediate_size": 32,
}  # fmt: skip
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "qk_head_dim": 32, "v_head_dim": 16, "index_n_heads": 2,
    "index_head_dim": 16, "index_topk": 8,
}  # fmt: skip
FOUR = ["sliding_attention", "full_attention"] * 2
MORE: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "mamba_d_ssm": 128},
    "axk1": MLA, "axk2": MLA,
    "youtu": MLA,
    "codegen": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 96,
                "rotary_dim": 8},
    "cohere2": {"sliding_window": 8},
    "deepseek_v2": MLA, "deepseek_v3": MLA, "deepseek_v32": MLA, "deepseek_v4": MLA,
    "exaone4": {"sliding_window": 8},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 8, "layer_types": FOUR[:2], "query_pre_attn_scalar": 16},
    "gemma3n_text": {"sliding_window": 8, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
                     "layer_types": FOUR, "hidden_size_per_layer_input": 16,
                     "vocab_size_per_layer_input": 96, "laurel_rank": 8,
                     "intermediate_size": [96] * 4, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": {"sliding_window": 8, "global_head_dim": 16, "num_global_key_value_heads": 2,
                    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 96,
                    "num_kv_shared_layers": 2, "num_hidden_layers": 4, "layer_types": FOUR},
    "glm4_moe_lite": MLA, "glm_moe_dsa": MLA,
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 96},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "window_size": 8,
                "attention_types": [[["global", "local"], 1]]},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 96,
             "rotary_dim": 8},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 96},
    "gpt_oss": {"sliding_window": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8,
              "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "kimi_linear": {**MLA, "layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "llama4_text": {"intermediate_size_mlp": 96, "attention_chunk_size": 32, "floor_scale": 16,
                    "layer_types": ["chunked_attention", "full_attention"],
                    "no_rope_layers": [1, 0]},
    "longcat_flash": {**MLA, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "num_layers": 2,
                      "zero_expert_num": 2, "moe_topk": 2},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2,
               "chunk_size": 16},
    "minicpm3": MLA,
    "minimax": {"block_size": 16, "layer_types": ["linear_attention", "full_attention"]},
    "mimo_v2_flash": {"v_head_dim": 8},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512},
    "mistral": {"sliding_window": 8},
    "nemotron_h": {"hybrid_override_pattern": "M*", "mamba_num_heads": 8, "mamba_head_dim": 16,
                   "ssm_state_size": 16, "n_groups": 1, "chunk_size": 16},
    "olmo3": {"sliding_window": 8},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "phi3": {"partial_rotary_factor": 1.0},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "zamba": {"layer_types": ["linear_attention", "hybrid"], "mamba_d_state": 8,
              "mamba_dt_rank": 4, "n_mamba_heads": 2},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"], "mamba_ngroups": 1,
               "n_mamba_heads": 8, "mamba_headdim": 16, "hybrid_layer_ids": [1], "chunk_size": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
}  # fmt: skip
"""What a family's tiny model has beside `SMALL`, of which each config takes what it knows."""
BOUND = 5e-6
"""Of the relative error of a gradient in float32."""


BFLOAT16_BOUND = 1.25
"""Of a forest's error in bfloat16, beside that of the rows."""
FLIPPED = 0.04
"""Of the rows' own error, from which on a router's choice has flipped in them, as a rule."""
NUM_SEEDS = 8
"""Weights that are tried in bfloat16 until a forest's error is within both."""


def make(name: str, *, seed: int = 0, **more: Any) -> Any:
    """Return a family's tiny model, without dropout."""
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name]
    known = set(inspect.signature(config_class.__init__).parameters)
    known |= set(config_class().to_dict())
    options = {k: v for k, v in SMALL.items() if k in known} | MORE.get(name, {}) | more
    config = config_class(**options)
    torch.manual_seed(seed)
    found: Any = transformers.AutoModelForCausalLM
    try:
        model = found.from_config(config, attn_implementation="eager")
    except ValueError:  # that has no such attention
        model = found.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return model.float().train()


def sample_rows() -> list[kt.Row]:
    """Return rows of three rollouts: two share more than the prompt, one branched on its way."""
    rng = random.Random(1)

    def some(num: int) -> list[int]:
        return [rng.randrange(3, 96) for _ in range(num)]

    prompt = some(41)
    stem = prompt + some(24)
    turn = stem + some(37)
    tokens = [stem + some(6), turn + some(9), turn + some(31), prompt + some(18), prompt + some(3)]
    return [
        kt.Row(ids, [0] * 41 + [1] * (len(ids) - 41), [-4.0] * len(ids), advantage)
        for ids, advantage in zip(tokens, (1.0, -0.7, 0.4, -1.2, 0.6), strict=True)
    ]


def row_by_row(model: Any, rows: Sequence[kt.Row], loss: str = "dapo") -> dict[str, Tensor]:
    """Return a loss's gradient, every row as transformers runs it by itself: `dapo` or `sft`."""
    total = torch.zeros(())
    for row in rows:
        ids = torch.from_numpy(row.token_ids.copy())
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        logp = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        worse = logp
        if loss == "dapo":
            ratio, advantage = (logp + 4.0).exp(), float(row.advantages[-1])
            worse = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        total = total - worse[torch.from_numpy(row.loss_mask[1:].copy()).bool()].sum()
    (total / sum(row.num_trained for row in rows)).backward()  # type: ignore[no-untyped-call]
    return take_gradient(model)


def take_gradient(model: Any) -> dict[str, Tensor]:
    """Return the parameters' gradients, which they lose."""
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Return the norm of the difference over the norm of what is wanted."""
    zero = torch.zeros(())
    apart = sum(
        float((found.get(n, zero) - wanted.get(n, zero)).double().pow(2).sum())
        for n in found.keys() | wanted.keys()
    )
    return float((apart / sum(float(g.double().pow(2).sum()) for g in wanted.values())) ** 0.5)


def in_bfloat16(name: str, rows: Sequence[kt.Row]) -> dict[str, Any]:
    """Return a row's columns of bfloat16."""
    best: dict[str, Any] = {}
    for seed in range(NUM_SEEDS):
        model = make(name, seed=seed)
        with torch.no_grad():  # the same weights in both
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16().float())
        exact = row_by_row(model, rows, "sft")
        half = half_of(model)
        found = {"bfloat16_rows": distance(row_by_row(half, rows, "sft"), exact)}
        forests = kt.pack(rows, max_tokens=4096)
        in_parts = [forest.in_parts(29) for forest in forests]
        for column, each in (("bfloat16_error", forests), ("bfloat16_error_in_parts", in_parts)):
            kt.forward_backward(half, each, kt.loss("sft"))
            found[column] = distance(take_gradient(half), exact)
        near = [row for row in (best, found) if row and is_as_near_as_rows(row)]
        best = min(near, key=lambda row: row["bfloat16_rows"]) if near else found
        if near and best["bfloat16_rows"] <= FLIPPED:
            break
    return best | {"bfloat16": "works" if is_as_near_as_rows(best) else "inexact"}


def is_as_near_as_rows(row: dict[str, Any]) -> bool:
    """Return whether a forest's gradient in bfloat16 is as near to float32 as that of its rows."""
    worst = max(float(row["bfloat16_error"]), float(row["bfloat16_error_in_parts"]))
    return worst <= BFLOAT16_BOUND * float(row["bfloat16_rows"])


def half_of(model: Any) -> Any:
    """Return a model of the same weights in bfloat16, as one is loaded and then prepared."""
    config = copy.deepcopy(model.config)
    how = {"attn_implementation": model.config._attn_implementation, "dtype": torch.bfloat16}
    half: Any = transformers.AutoModelForCausalLM.from_config(config, **how)
    for parameter, wide in zip(half.parameters(), model.parameters(), strict=True):
        parameter.data = wide.detach().bfloat16()
    return load_and_prepare(half.train(), kt.TrainerConfig(dtype="bfloat16"))[0]


def rechunk(model: Any) -> bool:
    """Halve the chunks that recurrent layers compute in; return whether there are any."""
    is_found = False
    for layer in model.modules():
        if isinstance(getattr(layer, "chunk_size", None), int):
            layer.chunk_size //= 2
            is_found = True
        module = sys.modules[type(layer).__module__]
        for name in ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention"):
            op: Callable[..., Any] | None = getattr(module, name, None)
            if op is not None and not getattr(op, "is_rechunked", False):

                def smaller(*args: Any, _op: Any = op, **kwargs: Any) -> Any:
                    return _op(*args, **{**kwargs, "chunk_size": 32})

                smaller.is_rechunked = True  # type: ignore[attr-defined]
                setattr(module, name, smaller)
                is_found = True
    return is_found


def measure(name: str) -> dict[str, Any]:
    """Return a family's row of the table."""
    row: dict[str, Any] = {"family": name}
    try:
        model = make(name)
    except Exception as error:  # whatever a config does with sizes it was not made for
        return row | {"result": "no tiny model", "reason": first_line(error)}
    row["class"] = type(model).__name__
    config = model.config.get_text_config()
    row["layers"] = " ".join(sorted(set(getattr(config, "layer_types", None) or ())))
    rows = sample_rows()
    try:
        wanted = row_by_row(model, rows)
    except Exception as error:  # transformers' own
        return row | {"result": "transformers fails", "reason": first_line(error)}
    forests = kt.pack(rows, max_tokens=4096)
    objective = kt.loss("dapo", clip_low=0.2, clip_high=0.28)
    try:
        kt.forward_backward(model, forests, objective)
        row["error"] = distance(take_gradient(model), wanted)
        kt.forward_backward(model, [forest.in_parts(29) for forest in forests], objective)
        row["error_in_parts"] = distance(take_gradient(model), wanted)
    except ValueError as error:
        return row | {"result": "refused", "reason": first_line(error)}
    except Exception as error:  # a row of the table, too
        return row | {"result": "error", "reason": first_line(error)}
    try:
        row |= in_bfloat16(name, rows)
    except Exception as error:  # a row of the table, too
        row |= {"bfloat16": "error", "reason": f"in bfloat16: {first_line(error)}"}
    bound = BOUND
    if rechunk(model):
        row["noise"] = distance(row_by_row(model, rows), wanted)
        bound = max(bound, 2 * row["noise"])
    worst = max(row["error"], row["error_in_parts"])
    return row | {"result": "works" if worst <= bound else "inexact"}


def first_line(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:240]


def measure_apart(name: str, timeout_s: float) -> dict[str, Any]:
    """Return a family's row, measured in a process of its own that ends with its time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, name))
    started = time.monotonic()
    process.start()
    sender.close()
    try:
        row: dict[str, Any] = {"family": name, "result": "timeout"}
        if receiver.poll(timeout_s):
            row = receiver.recv()
    except EOFError:
        process.join()
        row = {"family": name, "result": "error", "reason": f"exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
    return row | {"seconds": round(time.monotonic() - started, 1)}


def _send(sender: Connection, name: str) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    sender.send(measure(name))


FIELDS = (
    "family", "class", "layers", "result", "error", "error_in_parts", "noise", "bfloat16",
    "bfloat16_rows", "bfloat16_error", "bfloat16_error_in_parts", "reason",
    "transformers", "torch",
)  # fmt: skip


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="for each")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("model_families.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    rows = []
    for name in options.names or NAMES:
        rows.append(versions | measure_apart(name, options.timeout_s))
        told = {k: f"{v:.1e}" if isinstance(v, float) and k != "seconds" else v
                for k, v in rows[-1].items() if k not in versions}  # fmt: skip
        print(*told.values(), sep=" | ", flush=True)
    table: dict[str, dict[str, Any]] = {}
    if options.out.exists():
        with options.out.open(newline="", encoding="utf-8") as file:
            table = {row["family"]: row for row in csv.DictReader(file)}
    for row in rows:
        shown = {k: f"{v:.1e}" if isinstance(v, float) else v for k, v in row.items()}
        table[row["family"]] = shown
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table[name] for name in sorted(table))
    results = [row["result"] for row in rows]
    print(len(rows), "families:", *(f"{results.count(r)} {r}" for r in sorted(set(results))))
    halves = [row["bfloat16"] for row in rows if "bfloat16" in row]
    print("in bfloat16:", *(f"{halves.count(r)} {r}" for r in sorted(set(halves))))


if __name__ == "__main__":
    main()

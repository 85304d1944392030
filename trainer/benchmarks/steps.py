"""How fast a training step is on forests, beside other ways to train the same rows.

    python trainer/benchmarks/steps.py --shrink 32 --out trainer/benchmarks/steps_cpu.csv
    python trainer/benchmarks/steps.py --prefix         # 16 answers of 64 tokens to 1,024
    python trainer/benchmarks/steps.py --hybrid --layers 4 --width 256 --shrink 48
    katgym eval 'katgym/TreasureHunt-v1?level=2' --policy smollm2 --tasks 2 --group-size 8 \
        --max-tokens 48 --set limits.max_turns=6 --out runs/recorded
    python trainer/benchmarks/steps.py --recorded runs/recorded --vocabulary 49152

All methods (`methods.py`) give the gradient of the same loss, which is compared before anything is
timed; then they take turns, each with the optimizer's step. The ceiling is the ratio of the
floating-point operations of every row by itself to those of the trie. The peak memory is what a
step takes above what was held before it. Not here: what the families are
(`kernels/benchmarks/families.py`), steps on a GPU (`gpu.py`).
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import FAMILIES, Node, Tree
from methods import METHODS
from timing import Rows, device_name, in_turns, peak_mib, quantiles

from katgym_trainer import PackedForest, Row, loss, pack
from katgym_trainer.optimization.master_weights import MasterWeights

COLUMNS = ("family", "method", "rows", "num_flat", "num_tree", "por", "forests", "max_tokens",
           "p20_ms", "p50_ms", "p80_ms", "tokens_per_s", "speedup", "ceiling", "of_ceiling",
           "peak_mib", "repeats", "gradient_error")  # fmt: skip


def random_model(
    config: str = "Qwen3Config",
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    **shape: Any,
) -> Any:
    """Return a model of a shape with random weights; config: its class in transformers."""
    import transformers

    made = getattr(transformers, config)(
        max_position_embeddings=65_536, attn_implementation="sdpa", dtype=dtype, **shape
    )
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(made).to(dtype).train()


def make_model(layers: int, width: int, vocabulary: int, **more: Any) -> Any:
    """Return a small Qwen3-shaped model with random weights."""
    return random_model(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=width // 64, num_key_value_heads=width // 128,
        head_dim=64, tie_word_embeddings=True, **more,
    )  # fmt: skip


def make_hybrid(layers: int, width: int, vocabulary: int, **more: Any) -> Any:
    """Return a small model of Qwen3.5's shape: of four layers three are gated DeltaNet."""
    heads = width // 64
    return random_model(
        "Qwen3_5TextConfig", vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=max(1, heads // 2),
        head_dim=64, linear_num_key_heads=max(1, heads // 2), linear_num_value_heads=heads,
        linear_key_head_dim=64, linear_value_head_dim=64, tie_word_embeddings=True, **more,
    )  # fmt: skip


def make_rows(tree: Tree, vocabulary: int, *, seed: int = 0) -> list[Row]:
    """Return a tree's rows over random tokens; what each row adds last is trained."""
    rng = random.Random(seed)
    tokens = [rng.randrange(vocabulary) for _ in tree.end()]
    rows = []
    for runs in tree.rows():
        ids = [tokens[i] for start, stop in runs for i in range(start, stop)]
        num_last = runs[-1][1] - runs[-1][0]
        mask = [0] * (len(ids) - num_last) + [1] * num_last
        rows.append(Row(ids, mask, advantages=rng.gauss(0, 1)))
    return rows


def prefix_tree() -> Tree:
    """Return 16 answers of 64 tokens to a prompt of 1,024."""
    root = Node(1024)
    for _ in range(16):
        root.add(64, num_rows=1)
    return Tree(root)


def recorded_rows(path: Path) -> list[Row]:
    """Return the rows of recorded rollouts, one for each model call, as an agent's log holds it."""
    # A machine that runs kernels alone may not have katgym.
    from katgym_trainer.rollouts.rollout_files import read_rollouts

    rows = []
    for rollout in read_rollouts(path):
        for number, turn in enumerate(rollout.turns):
            prompt = rollout.prompt_ids(number)
            assert turn.tokens is not None  # prompt_ids has looked
            answer = turn.tokens.completion_ids
            rows.append(Row([*prompt, *answer], [0] * len(prompt) + [1] * len(answer)))
    return rows


def operations(model: Any, num_tokens: int, num_pairs: int, num_edges: int) -> float:
    """Return the floating-point operations of forward and backward.

    6 for each weight a token goes through, 14 for each pair, head and element of a head (4 forward,
    10 backward), 6 for each weight of the head and each edge; where a gated DeltaNet's keys and
    values have D elements, 6 (5 * 64 D + 3 D^2) a token and head: chunks of 64, then the state.
    """
    config = model.config
    body = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    attention = kinds.count("full_attention") * config.num_attention_heads * config.head_dim
    if num_linear := kinds.count("linear_attention"):
        size = config.linear_value_head_dim
        body += num_linear * config.linear_num_value_heads * (5 * 64 * size + 3 * size**2)
    head = config.vocab_size * config.hidden_size
    return 6.0 * body * num_tokens + 14.0 * attention * num_pairs + 6.0 * head * num_edges


def ceiling(model: Any, rows: list[Row], forests: list[PackedForest]) -> float:
    """Return the operations of all rows over those of the whole trie."""
    flat = operations(
        model, sum(map(len, rows)), sum(n * (n + 1) // 2 for n in map(len, rows)),
        sum(row.num_trained for row in rows),
    )  # fmt: skip
    (whole,) = pack(rows, max_tokens=sum(map(len, rows)))
    stats = whole.stats
    return flat / operations(model, stats.num_tree, stats.num_pairs, stats.num_edges)


def gradient(model: Any, step: Callable[[], object]) -> Tensor:
    """Return the gradient a step leaves, in one piece; what it adds up, it adds in float32."""
    masters = MasterWeights(model.named_parameters())
    model.zero_grad()
    step()
    found = torch.cat([p.grad.flatten().cpu() for _, p in masters.named() if p.grad is not None])
    masters.clear_gradients()
    masters.close()
    return found


def measure(
    name: str,
    model: Any,
    rows: list[Row],
    methods: Sequence[str],
    *,
    max_tokens: int,
    repeats: int,
    limit_s: float,
    fail: Callable[[str], object] = sys.exit,
) -> list[dict[str, object]]:
    """Return a row of numbers for each method, the first of which the others are compared with.

    fail: is told of a gradient that is off, and of a method that the GPU's memory is too small for.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, fused=True)
    sft = loss("sft")
    bound = 1e-4 if model.dtype == torch.float32 else 0.1
    peaks, errors = {}, {}
    wanted = None

    def whole_step(method: str) -> None:
        METHODS[method](model, rows, sft, max_tokens)
        optimizer.step()
        model.zero_grad()

    for method in methods:
        try:
            step = functools.partial(METHODS[method], model, rows, sft, max_tokens)
            found = gradient(model, step)
            wanted = found if wanted is None else wanted
            errors[method] = float((found - wanted).norm() / wanted.norm())
            if not errors[method] < bound:
                fail(f"{name}: the gradient of {method} is off by {errors[method]:.1e}")
            if not peaks:
                whole_step(method)  # the optimizer has its state
            peaks[method] = peak_mib(functools.partial(whole_step, method))
        except torch.OutOfMemoryError:
            model.zero_grad()
            torch.cuda.empty_cache()
            fail(f"{name}: {method} is out of memory")
    times = in_turns(
        {method: functools.partial(whole_step, method) for method in peaks},
        model.device, repeats=repeats, limit_s=limit_s, is_warm=True,
    )  # fmt: skip
    return [
        {
            **row, "peak_mib": round(peaks[row["method"]]),
            "gradient_error": f"{errors[row['method']]:.1e}",
        }
        for row in _table(name, model, rows, times, max_tokens=max_tokens)
    ]  # fmt: skip


def _table(
    name: str, model: Any, rows: list[Row], times: dict[str, list[float]], *, max_tokens: int
) -> list[dict[str, Any]]:
    """Return a row for each method's times, beside those of the first."""
    forests = pack(rows, max_tokens=max_tokens)
    best = ceiling(model, rows, forests)
    num_flat = sum(map(len, rows))
    num_tree = sum(f.stats.num_tree for f in forests)
    first = statistics.median(next(iter(times.values())))
    shared = {
        "family": name, "rows": len(rows), "num_flat": num_flat, "num_tree": num_tree,
        "forests": len(forests), "por": round(1 - num_tree / num_flat, 3),
        "max_tokens": max_tokens, "ceiling": round(best, 2),
    }  # fmt: skip
    measured = []
    for method, values in times.items():
        speedup = first / statistics.median(values)
        measured.append(
            {
                **shared, "method": method, **quantiles(values),
                "tokens_per_s": round(num_flat / statistics.median(values) * 1e3),
                "speedup": round(speedup, 2), "of_ceiling": round(speedup / best, 3),
                "repeats": len(values),
            }
        )  # fmt: skip
    return measured


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", action="store_true", help="the case of one prompt alone")
    parser.add_argument("--hybrid", action="store_true", help="Qwen3.5's shape; rows and forest")
    parser.add_argument("--recorded", type=Path, help="rollouts to train instead of families")
    parser.add_argument("--methods", default=",".join(METHODS), help="all of them")
    parser.add_argument("--family", default="", help="those with this in their name alone")
    parser.add_argument("--shrink", type=int, default=16, help="divides all lengths (16)")
    parser.add_argument("--limit-s", type=float, default=600, help="for a family's repeats (600)")
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--width", type=int, default=512, help="of the model (512)")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a forest (8192)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    return parser


def main() -> None:
    """Measure, write the CSV, print a table."""
    parser = _parser()
    options = parser.parse_args()
    make = make_hybrid if options.hybrid else make_model
    model = make(options.layers, options.width, options.vocabulary)
    num = sum(p.numel() for p in model.parameters())
    chosen = [family for family in FAMILIES if options.family in family.name]
    if not chosen:
        parser.error(f"no family has {options.family!r} in its name")
    methods = ["rows", "forest"] if options.hybrid else options.methods.split(",")
    if "rows" not in methods or not set(methods) <= set(METHODS):
        parser.error(f"--methods are rows and some of {', '.join(METHODS)}")
    data = {
        f.name: make_rows(f.make(random.Random(0)).shrunk(options.shrink), options.vocabulary)
        for f in chosen
    }
    if options.prefix:
        data = {"16 answers of 64 to 1,024": make_rows(prefix_tree(), options.vocabulary)}
    if options.recorded:
        data = {f"recorded: {options.recorded.name}": recorded_rows(options.recorded)}
    is_whole = options.prefix or options.recorded
    shared = {
        "parameters": num, "shrink": 1 if is_whole else options.shrink,
        "device": device_name(model.device), "dtype": "float32",
    }  # fmt: skip
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, shared)
        for name, rows in data.items():
            for row in measure(
                name, model, rows, methods, max_tokens=options.max_tokens, repeats=options.repeats,
                limit_s=options.limit_s,
            ):  # fmt: skip
                table.write(row)
                print(
                    f"{name:44} {row['method']:12} {row['p50_ms']:9} ms {row['tokens_per_s']:7}"
                    f" tokens/s {row['speedup']:6}x of {row['ceiling']}x ({row['of_ceiling']:.0%})"
                    f" {row['peak_mib']:6} MiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()

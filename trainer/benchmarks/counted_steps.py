"""Training steps counted on a card that is not there: launches, bytes, memory, waits; rows in csv.

    python trainer/benchmarks/counted_steps.py             # all, into counted_steps.csv; an hour
    python trainer/benchmarks/counted_steps.py gate                # those that the gate counts
    python trainer/benchmarks/counted_steps.py "0.6b lora" "tiny grpo"     # these rows of it

Subjects: `LARGE`, on 16 answers of about 1k to a prompt of 4k in bfloat16 with AdamW, the second
step; every algorithm and setting on a model of one layer, a first step; one for each
family of `model_families.py` in bfloat16, whole, in parts and checkpointed. Least milliseconds are
at the rates that an H100 reaches (`katgym_trainer/fake_card/cards.py`); attention's products stand
apart. Exit code 1 if a step fails. Not here: time on a card (`steps.py`).
"""

from __future__ import annotations

import argparse
import csv
import inspect
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "kernels/benchmarks"))

import model_families
import transformers
from families import FAMILIES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from katgym_trainer import ALGORITHMS
from katgym_trainer.fake_card.step_counts import StepCounts
from katgym_trainer.fake_card.step_process import StepFailure, count_steps
from katgym_trainer.fake_card.step_request import StepRequest

TABLE = Path(__file__).with_suffix(".csv")
ROWS = "grpo n=16 prompt 4k answers 1k"
QWEN3 = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "0.6b": ("Qwen3Config", {
        **QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16,
    }),
    "8b": ("Qwen3Config", {
        **QWEN3, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "tie_word_embeddings": False,
    }),
    "gemma3-1b": ("Gemma3TextConfig", {
        "vocab_size": 262_144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "sliding_window": 512,
    }),
    "qwen3-moe-4-layers": ("Qwen3MoeConfig", {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "tie_word_embeddings": False,
    }),
    "gpt-oss-4-layers": ("GptOssConfig", {
        "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 4,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "sliding_window": 128, "tie_word_embeddings": False,
    }),
    "qwen3.5-0.8b": ("Qwen3_5TextConfig", {
        "vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
    }),
    "tiny": ("Qwen3Config", {
        "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
    }),
}  # fmt: skip
"""Name -> configuration of transformers; of Qwen3-MoE and gpt-oss four layers."""
CHECKPOINTED, LORA = {"should_checkpoint_activations": True}, {"lora_rank": 16}
LARGE: dict[str, tuple[str, dict[str, Any], int]] = {
    "0.6b": ("0.6b", {}, 1),
    "0.6b checkpointed": ("0.6b", CHECKPOINTED, 1),
    "0.6b lora": ("0.6b", LORA, 1),
    "0.6b lora checkpointed": ("0.6b", LORA | CHECKPOINTED, 1),
    "0.6b muon": ("0.6b", {"optimizer": "muon"}, 1),
    "0.6b offloaded": ("0.6b", {"should_offload_activations": True, **CHECKPOINTED}, 1),
    "0.6b in three forests": ("0.6b", {"max_tokens": 12_000}, 1),
    "0.6b on 8 cards": ("0.6b", {}, 8),
    "8b lora checkpointed": ("8b", LORA | CHECKPOINTED, 1),
    "8b checkpointed on 8 cards": ("8b", CHECKPOINTED, 8),
    "gemma3-1b checkpointed": ("gemma3-1b", CHECKPOINTED, 1),
    "qwen3-moe-4-layers checkpointed": ("qwen3-moe-4-layers", CHECKPOINTED, 1),
    "gpt-oss-4-layers checkpointed": ("gpt-oss-4-layers", CHECKPOINTED, 1),
    "qwen3.5-0.8b checkpointed": ("qwen3.5-0.8b", CHECKPOINTED, 1),
}
"""Subject -> shape, settings, cards."""
PARTS = {"should_split": True, "max_tokens": 400}
TINY_SETTINGS: Sequence[Mapping[str, Any]] = (
    CHECKPOINTED,
    {"lora_rank": 4, "loss": {"kl_coef": 0.1}},
    {"lora_rank": 4, "should_offload_activations": True, **CHECKPOINTED},
    {"advantage_scaling": "entropy"},
    {"pruning": "best", "max_unique_tokens": 500},
    {"num_updates": 2},
    PARTS,
    PARTS | CHECKPOINTED,
    {"should_share_prefixes": False},
    {"optimizer": "muon", "rounding": "stochastic"},
    {"backend": "cascade"},
    {"backend": "reference"},
    {"backend": "sdpa"},
    {"temperature": 0.7, "loss": {"entropy_coef": 0.01}},
    {"max_grad_norm": None},
)
GATE_FAMILIES = """
afmoe gemma2 gemma3_text glm4 gpt_oss lfm2 llama llama4_text mamba2 mistral olmo2 phi3 qwen2
qwen3_5_text qwen3_moe
""".split()  # noqa: SIM905 - as `model_families` has it
UNCOUNTED = {
    "jetmoe": "it splits tensors by how many tokens each expert has, and these are values",
    "falcon checked": "it indexes by a list, of which torch makes a tensor that no mode sees where"
    " layers are computed again",
}
"""Families and subjects that are not counted -> why."""
FAMILY_SETTINGS = {"whole": {}, "in parts": {**PARTS, "max_tokens": 300}, "checked": CHECKPOINTED}
FIGURES = ("launches", "gb_moved", "peak_gib", "waits", "copies", "gb_received")
"""What a step may not ask more of than its row says."""
_PART = 20
"""Subjects of one process; more, and others wait for the last; fewer, and starts take the time."""
Row = dict[str, str]


def large(folder: Path, name: str) -> StepRequest:
    """Return a step of `LARGE`."""
    shape, settings, num_cards = LARGE[name]
    (family,) = (each for each in FAMILIES if each.name == ROWS)
    lengths = family.make(random.Random(0)).row_lengths()
    return StepRequest(
        model=write_shape(folder, shape),
        prompt_tokens=4096,
        answer_tokens=tuple(length - 4096 for length in lengths),
        settings={"dtype": "bfloat16", "max_tokens": 40_000, **settings},
        num_cards=num_cards,
    )


def tiny(model: str, algorithm: str = "grpo", num_cards: int = 1, **settings: Any) -> StepRequest:
    """Return a step on 16 answers to a prompt of 256, in groups of 4: the first on one card.

    In the first of several, torch works out how each op's result is sharded.
    """
    return StepRequest(
        model=model,
        prompt_tokens=256,
        answer_tokens=(60, 70) * 8,
        group_size=4,
        algorithm=algorithm,
        settings={"dtype": "bfloat16", "max_tokens": 4000, **settings},
        num_cards=num_cards,
        num_steps=1 if num_cards == 1 else 2,
    )


def list_tiny(folder: Path) -> Iterator[tuple[str, StepRequest]]:
    """Yield every algorithm and setting on a model of one layer.

    DPO is not among them: the sizes of its tensors are values.
    """
    model = write_shape(folder, "tiny")
    for algorithm in ALGORITHMS:
        if algorithm != "dpo":
            more = {"loss": {"max_completion_tokens": 100}} if algorithm == "dr_grpo" else {}
            yield f"tiny {algorithm}", tiny(model, algorithm, **more)
    for settings in TINY_SETTINGS:
        yield f"tiny {_describe(settings)}", tiny(model, **settings)
    for settings in ({}, CHECKPOINTED, LORA):
        yield f"tiny {_describe(settings)} on 2 cards", tiny(model, num_cards=2, **settings)


def list_families(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, StepRequest]]:
    """Yield first steps of small models of families, as `model_families.py` makes them."""
    for name in names:
        config_class = CONFIG_MAPPING[name]
        known = {*inspect.signature(config_class.__init__).parameters, *config_class().to_dict()}
        shape = {k: v for k, v in model_families.SMALL.items() if k in known}
        config_class(**shape | model_families.MORE.get(name, {})).save_pretrained(folder / name)
        for kind, settings in FAMILY_SETTINGS.items():
            yield f"{name} {kind}", tiny(str(folder / name), "sft", **settings)


def list_gate(folder: Path) -> Iterator[tuple[str, StepRequest]]:
    """Yield the subjects that the gate counts."""
    yield "0.6b", large(folder, "0.6b")
    yield from list_tiny(folder)
    for name, request in list_families(folder, GATE_FAMILIES):
        if name.endswith("whole"):
            yield name, request


def list_all(folder: Path) -> Iterator[tuple[str, StepRequest]]:
    """Yield all subjects; families are those that work on a forest."""
    yield from ((name, large(folder, name)) for name in LARGE)
    yield from list_tiny(folder)
    with Path(model_families.__file__).with_suffix(".csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["result"] in ("works", "inexact")]
    for name, request in list_families(folder, [row["family"] for row in rows]):
        if not {name, name.partition(" ")[0]} & {*UNCOUNTED}:
            yield name, request


def write_shape(folder: Path, name: str) -> str:
    """Write the configuration of a model of `SHAPES`, without weights; return its folder."""
    config, shape = SHAPES[name]
    common = {"max_position_embeddings": 65_536, "tie_word_embeddings": True}
    getattr(transformers, config)(**common | shape).save_pretrained(folder / name)
    return str(folder / name)


def count_all(
    requests: Mapping[str, StepRequest],
    *,
    num_processes: int = 2,
    tell: Callable[[str, StepCounts | StepFailure], None] = lambda name, found: None,
) -> dict[str, StepCounts | StepFailure]:
    """Return the counts of each subject's step; each process takes some, then others some more.

    tell: is given each as soon as it is there.
    """

    def count(names: Sequence[str]) -> dict[str, StepCounts | StepFailure]:
        some = {}
        for name, found in zip(names, count_steps([requests[n] for n in names]), strict=True):
            some[name] = found
            tell(name, found)
        return some

    names = [*requests]
    num_parts = max(num_processes, len(names) // _PART)
    parts = [names[number::num_parts] for number in range(num_parts)]
    with ThreadPoolExecutor(num_processes) as pool:
        counted = {name: found for some in pool.map(count, parts) for name, found in some.items()}
    return {name: counted[name] for name in names}


def row_of(name: str, counts: StepCounts) -> Row:
    """Return a row of the table."""
    return {
        "subject": name,
        "launches": str(counts.launches),
        "gb_moved": f"{counts.total.bytes_moved / 1e9:.4g}",
        "least_ms": f"{1e3 * counts.total.least_s:.4g}",
        "attention_ms": f"{1e3 * counts.attention_s:.4g}",
        "peak_gib": f"{counts.peak_bytes / 2**30:.4g}",
        "held_gib": f"{counts.held_bytes / 2**30:.4g}",
        "waits": str(counts.num_waits),
        "copies": str(counts.num_copies),
        "gb_received": f"{counts.received_bytes / 1e9:.4g}",
        "transformers": version("transformers"),
        "torch": version("torch"),
    }


def read_table() -> dict[str, Row]:
    """Return the committed rows by subject."""
    with TABLE.open(newline="") as lines:
        return {row["subject"]: row for row in csv.DictReader(lines)}


def find_excess(row: Row, committed: Mapping[str, Row]) -> list[str]:
    """Return what a step asks more of than its row says, or less than nine tenths of.

    Then it asks for less than before, and its row is to be counted anew.
    """
    name = row["subject"]
    if (known := committed.get(name)) is None:
        return [f"{name}: no row in {TABLE.name}; count it: counted_steps.py {name!r}"]
    return [
        f"{name}: {figure} {row[figure]}, its row says {known[figure]}"
        for figure in FIGURES
        if not 0.9 * float(known[figure]) <= float(row[figure]) <= float(known[figure])
    ]


def check(requests: Mapping[str, StepRequest]) -> list[str]:
    """Count steps; return those that fail, and what others ask more of than their rows say."""
    known, problems = read_table(), []
    for name, found in count_all(requests).items():
        if isinstance(found, StepFailure):
            problems.append(f"{name}: {found.kind}: {found.error}")
        else:
            problems += find_excess(row_of(name, found), known)
    return problems


def main() -> int:
    """Count subjects, print their rows, and write them into the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("subjects", nargs="*", help="names of subjects, or 'gate' (all)")
    asked = parser.parse_args().subjects
    rows = read_table() if TABLE.exists() and asked else {}
    with tempfile.TemporaryDirectory() as folder:
        known = dict(list_all(Path(folder)))
        chosen = [*dict(list_gate(Path(folder)))] if asked == ["gate"] else asked or [*known]
        if unknown := {*chosen} - {*known}:
            parser.error(f"no subject {min(unknown)!r}; they are {', '.join(known)}")
        counted = count_all({name: known[name] for name in chosen}, tell=_print)
    rows |= {n: row_of(n, found) for n, found in counted.items() if isinstance(found, StepCounts)}
    rows = {name: rows[name] for name in known if name in rows}
    if rows:
        with TABLE.open("w", newline="") as out:
            writer = csv.DictWriter(out, [*next(iter(rows.values()))], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
    return int(any(isinstance(found, StepFailure) for found in counted.values()))


def _print(name: str, found: StepCounts | StepFailure) -> None:
    if isinstance(found, StepFailure):
        print(f"{name}: FAILED {found.kind}: {found.error}", flush=True)
    else:
        print(*row_of(name, found).values(), flush=True)


def _describe(settings: Mapping[str, Any]) -> str:
    """Return settings as a run's file would have them, short."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{k}": v for k, v in value.items()} if name == "loss" else {name: value}
    return " ".join(f"{name}={value}" for name, value in flat.items()) or "grpo"


if __name__ == "__main__":
    sys.exit(main())

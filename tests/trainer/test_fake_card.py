"""A card that is not there: ops are counted as worked out by hand, steps ask no more than before.

Counts of steps are upper bounds, so a change that asks for less passes; it lowers them here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import model_families
import pytest
import transformers
from families import FAMILIES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from katgym.cli.main import main
from katgym.errors import UnknownNameError, UsageError
from katgym_trainer import ALGORITHMS
from katgym_trainer.fake_card.cards import find_card
from katgym_trainer.fake_card.model_fit import SETTINGS, ModelFit, has_room
from katgym_trainer.fake_card.step_counts import OpCounts, StepCounts
from katgym_trainer.fake_card.step_process import StepFailure, count_steps
from katgym_trainer.fake_card.step_request import StepRequest
from katgym_trainer.fake_card.trained_step import make_rows

MIB = 2**20
ROWS = "grpo n=16 prompt 4k answers 1k"
SMALL = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
"""Qwen3-0.6B's."""
TINY = {
    "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
}  # fmt: skip
SMALL_BOUNDS = (6866, 832_364, 47_262, 10, 27)
"""Launches, MB moved, peak in MiB, waits, copies of a step of Qwen3-0.6B's shape."""
CHECKPOINTED, LORA = {"should_checkpoint_activations": True}, {"lora_rank": 4}
TINY_BOUNDS: list[tuple[Any, ...]] = [
    ("sft", {}, 394, 239, 20, 9, 27),
    ("reinforce", {}, 395, 239, 20, 9, 27),
    ("rloo", {}, 395, 239, 20, 9, 27),
    ("grpo", {}, 426, 239, 20, 10, 27),
    ("dr_grpo", {"loss": {"max_completion_tokens": 100}}, 428, 239, 20, 10, 27),
    ("dapo", {}, 426, 239, 20, 10, 27),
    ("gspo", {}, 438, 240, 20, 10, 27),
    ("gspo_token", {}, 438, 240, 20, 10, 27),
    ("reinforce_plus_plus", {}, 426, 239, 20, 10, 27),
    ("reinforce_plus_plus_baseline", {}, 426, 239, 20, 10, 27),
    ("cispo", {}, 403, 239, 20, 10, 27),
    ("ppo", {}, 426, 239, 20, 10, 27),
    ("grpo", CHECKPOINTED, 480, 278, 17, 10, 27),
    ("grpo", LORA, 451, 228, 17, 10, 27),
    ("grpo", LORA | CHECKPOINTED, 557, 312, 14, 10, 27),
]
"""Algorithm, settings; then as above, of a first step of a model of one layer. DPO is not here:
the sizes of its tensors are values."""
SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "small": ("Qwen3Config", SMALL),
    "8b": ("Qwen3Config", {
        "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 12_288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": False,
    }),
    "gemma": ("Gemma3TextConfig", {
        "vocab_size": 262_144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "sliding_window": 512,
    }),
    "moe": ("Qwen3MoeConfig", {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "tie_word_embeddings": False,
    }),
    "oss": ("GptOssConfig", {
        "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 4,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "sliding_window": 128, "tie_word_embeddings": False,
    }),
    "hybrid": ("Qwen3_5TextConfig", {
        "vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
    }),
}  # fmt: skip
"""Qwen3-0.6B and 8B, Gemma 3 1B; four layers each of Qwen3-MoE, gpt-oss and Qwen3.5."""
SHAPE_BOUNDS: list[tuple[Any, ...]] = [
    ("small", CHECKPOINTED, 1, 8378, 1_019_903, 11_906, 10, 27),
    ("small", {"lora_rank": 16}, 1, 8448, 939_725, 34_826, 10, 27),
    ("small", {}, 8, 6537, 834_889, 40_502, 10, 27),
    ("8b", {"lora_rank": 16, **CHECKPOINTED}, 1, 13_522, 4_356_113, 27_794, 10, 27),
    ("gemma", CHECKPOINTED, 1, 10_860, 1_129_684, 19_161, 10, 51),
    ("moe", CHECKPOINTED, 1, 2304, 597_250, 55_740, 10, 27),
    ("oss", CHECKPOINTED, 1, 2594, 853_864, 78_325, 10, 41),
    ("hybrid", CHECKPOINTED, 1, 26_445, 977_978, 11_054, 11, 56),
]
"""Shape, settings, cards; then as above."""
FAMILY_NAMES = """
afmoe gemma2 gemma3_text glm4 gpt_oss lfm2 llama llama4_text mamba2 mistral olmo2 phi3 qwen2
qwen3_5_text qwen3_moe
""".split()  # noqa: SIM905 - as `model_families` has it
BY_HAND = """
import dataclasses, json, sys
from katgym_trainer.fake_card.device_guard import load_device_guard
load_device_guard()
import torch
from katgym_trainer.fake_card.cards import find_card
from katgym_trainer.fake_card.fake_card import FakeCard

with FakeCard(find_card("h100")) as card:
    half = dict(dtype=torch.bfloat16, device="cuda")
    a = torch.empty(63, 100, **half, requires_grad=True)
    w = torch.empty(100, 1025, **half)
    found = {"held": card.memory.live_bytes}
    y = a @ w
    found["product"] = dataclasses.asdict(card.counts())
    y.backward(torch.empty(63, 1025, **half))
    assert a.grad.shape == a.shape and a.grad.device == a.device
    del y, w, a
    found["left"] = card.memory.live_bytes
    card.clear()
    wide = torch.empty(1, 2**20, dtype=torch.bfloat16, device="cuda").expand(2**10, -1)
    torch.relu(wide)
    found["wide"] = dataclasses.asdict(card.counts())
    card.clear()
    few = torch.ones(3).to("cuda")
    numbers = few.sum().item(), few.nonzero().shape, few.cpu().tolist(), bool(few.isnan().any())
    found["numbers"] = numbers
    found["host"] = dataclasses.asdict(card.counts())
    try:
        few + torch.ones(3, 3)
    except RuntimeError as e:
        found["mixed"] = str(e)
print(json.dumps(found))
"""
REHEARSED = """
import sys
from katgym_trainer.fake_card.device_guard import load_device_guard
load_device_guard()
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from katgym_trainer import Trainer, TrainerConfig
from katgym_trainer.fake_card.cards import find_card
from katgym_trainer.fake_card.fake_card import FakeCard
from katgym_trainer.fake_card.rehearsal_peak import compared_peak

path, algorithm = sys.argv[1:]
config = TrainerConfig(dtype="bfloat16", max_tokens=4000)
with FakeCard(find_card("h100")):
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    with compared_peak(path, algorithm, config, print):
        Trainer(model.bfloat16().train(), "grpo", args=config).rehearse()
"""


def test_ops_are_counted_as_worked_out_by_hand() -> None:
    found = json.loads(run_script(BY_HAND))
    # [63, 100] and [100, 1025] in bfloat16, in blocks of 512 bytes
    assert found["held"] == 25 * 512 + 401 * 512
    product = StepCounts.of(found["product"])
    num_bytes = 2 * (63 * 100 + 100 * 1025 + 63 * 1025)
    assert product.ops == {
        "mm": OpCounts(
            launches=1, bytes_moved=num_bytes, operations=2 * 63 * 100 * 1025, least_s=2e-6
        )
    }
    assert product.peak_bytes == (25 + 401 + 253) * 512
    assert found["left"] == 0
    wide = StepCounts.of(found["wide"]).ops["relu"]
    assert wide.bytes_moved == 2 * 2**20 + 2 * 2**30  # what is repeated is read once
    assert wide.least_s == pytest.approx(wide.bytes_moved / 3.0e12)
    host = StepCounts.of(found["host"])
    assert found["numbers"] == [1.0, [3, 1], [0.0] * 3, False]
    assert (host.num_waits, host.num_copies) == (4, 1)
    assert "cpu" in found["mixed"] and "cuda" in found["mixed"]


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path: Path) -> None:
    code = BY_HAND.partition("import torch")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
        env={**own_environment(), "KATGYM_CACHE": str(tmp_path), "PATH": str(tmp_path), "CXX": ""},
    )  # fmt: skip
    assert "MissingDependencyError" in done.stderr and "$CXX" in done.stderr


def test_cards_are_known_by_name() -> None:
    assert find_card("h100").bytes_per_s == pytest.approx(3.0e12)
    assert find_card("h100").half_per_s == pytest.approx(700e12)
    with pytest.raises(UnknownNameError, match="h100"):
        find_card("h10")
    with pytest.raises(UsageError, match="num_cards"):
        StepRequest.of_tokens("m", 100, num_cards=0)
    with pytest.raises(UsageError, match="tokens"):
        StepRequest.of_tokens("m", 31)


def test_a_group_of_rows_has_the_tokens_that_are_asked_for() -> None:
    request = StepRequest.of_tokens("m", 1025, settings={"lora_rank": 4})
    assert request.settings == {"dtype": "bfloat16", "max_tokens": 1025, "lora_rank": 4}
    assert request.prompt_tokens + sum(request.answer_tokens) == 1025
    rows, others = (make_rows(request, 100, card=card) for card in (0, 1))
    assert sorted(int(row.token_ids[request.prompt_tokens]) for row in rows) == [*range(16)]
    assert rows[0].token_ids[0] != others[0].token_ids[0]


def test_a_step_asks_no_more_of_a_card_than_before(tmp_path: Path) -> None:
    make_folder(tmp_path / "small", SMALL)
    make_folder(tmp_path / "tiny", TINY)
    cases: list[tuple[Any, ...]] = [("0.6b", step_of_a_group(tmp_path / "small"), *SMALL_BOUNDS)]
    for algorithm, settings, *bounds in TINY_BOUNDS:
        request = tiny_step(tmp_path / "tiny", algorithm, settings)
        cases.append((f"tiny {algorithm} {settings}", request, *bounds))
    assert {algorithm for algorithm, *_ in TINY_BOUNDS} == {*ALGORITHMS} - {"dpo"}
    nowhere = StepRequest.of_tokens(str(tmp_path / "nowhere"), 100)
    unknown = tiny_step(tmp_path / "tiny", "grpo", {"lora_rnak": 4})
    requests = [request for _, request, *_ in cases]
    *found, no_model, no_setting = count_steps([*requests, nowhere, unknown])
    assert find_excess(cases, found) == []
    assert isinstance(no_model, StepFailure) and isinstance(no_setting, StepFailure)
    assert no_model.kind == "UsageError" and "nowhere" in no_model.error
    assert no_setting.kind == "UnknownNameError" and "lora_rank" in no_setting.error


@pytest.mark.slow
def test_what_a_rehearsal_takes_is_told_beside_the_prediction(tmp_path: Path) -> None:
    make_folder(tmp_path, TINY)
    told = run_script(REHEARSED, str(tmp_path), "grpo")
    taken, predicted = (float(n.replace(",", "")) for n in re.findall(r"([\d.,]+) (?:MiB|were)", told))
    num = 1000 * 128 + 2 * 128 * (2 * 64 + 64) + 3 * 128 * 384  # weights that are matrices
    assert taken == predicted
    assert (4 + 2) * num < taken * MIB < 2 * (4 + 2) * num  # masters, gradients and little more
    assert "could not be predicted: UnknownNameError" in run_script(REHEARSED, str(tmp_path), "grp")


@pytest.mark.slow
def test_steps_of_other_shapes_ask_no_more_than_before(tmp_path: Path) -> None:
    cases: list[tuple[Any, ...]] = []
    for name, (config, shape) in SHAPES.items():
        make_folder(tmp_path / name, shape, config)
    for name, settings, num_cards, *bounds in SHAPE_BOUNDS:
        request = step_of_a_group(tmp_path / name, **settings)
        request = dataclasses.replace(request, num_cards=num_cards)
        cases.append((f"{name} {settings} on {num_cards}", request, *bounds))
    found = [*count_steps([request for _, request, *_ in cases])]
    assert find_excess(cases, found) == []


@pytest.mark.slow
def test_families_train_on_a_card_in_bfloat16(tmp_path: Path) -> None:
    requests = {}
    for name in FAMILY_NAMES:
        config_class = CONFIG_MAPPING[name]
        known = {*inspect.signature(config_class.__init__).parameters, *config_class().to_dict()}
        shape = {k: v for k, v in model_families.SMALL.items() if k in known}
        config_class(**shape | model_families.MORE.get(name, {})).save_pretrained(tmp_path / name)
        for settings in ({}, CHECKPOINTED, {"should_split": True, "max_tokens": 300}):
            requests[f"{name} {settings}"] = tiny_step(tmp_path / name, "sft", settings)
    failures = [
        f"{title}: {found.kind}: {found.error}"
        for title, found in zip(requests, count_steps([*requests.values()]), strict=True)
        if isinstance(found, StepFailure)
    ]
    assert failures == []


@pytest.mark.slow
def test_doctor_says_what_of_a_model_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "tiny", TINY)
    command = ["doctor", "--model", str(tmp_path / "tiny"), "--tokens", "2000", "--cards", "2"]
    assert main([*command, "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)
    assert [fit["setting"] for fit in fits] == [*SETTINGS]
    assert all(fit["has_room"] and fit["received_bytes"] > 0 for fit in fits)
    whole, checkpointed, lora, _ = (fit["peak_bytes"] for fit in fits)
    assert checkpointed < whole and lora < whole


def test_doctor_refuses_what_it_cannot_answer(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", str(Path(__file__).parent)]
    for options, told in (
        (["--card", "h100"], "--card h100"),
        ([*model, "--card", "h10"], "'h100'"),
        (["--model", "./nowhere"], "'./nowhere'"),
        ([*model, "--tokens", "31"], "31"),
        ([*model, "--cards", "0"], "0"),
        ([*model, "--cluster", "auto"], "--cluster"),
    ):
        assert main(["doctor", *options]) == 2, options
        assert told in capsys.readouterr().err


def test_a_card_has_room_for_tensors_and_cuda() -> None:
    """Of 10 GiB one is left free, and CUDA takes 2."""
    gib = 2**30
    assert has_room(7 * gib, 10 * gib)
    assert not has_room(7 * gib + 1, 10 * gib)
    op = OpCounts(launches=3, bytes_moved=10, operations=4, least_s=0.25)
    counts = StepCounts(
        peak_bytes=8 * gib, begun_bytes=0, held_bytes=0, ops={"mm": op, "mul": op}, waits={"item": 5},
        attention_s=1, received_bytes=6,
    )  # fmt: skip
    assert ModelFit.of("all", counts, 10 * gib) == ModelFit(
        setting="all", has_room=False, peak_bytes=8 * gib, least_s=1.5, bytes_moved=20,
        received_bytes=6, launches=6, num_waits=5,
    )  # fmt: skip


def find_excess(
    cases: Sequence[tuple[Any, ...]], counted: Sequence[StepCounts | StepFailure]
) -> list[str]:
    """Return what steps ask for above the bounds, or below half of them: those are to be lowered.

    cases: name, request, then bounds of launches, MB moved, peak in MiB, waits, copies.
    """
    found = []
    for (name, _, *bounds), counts in zip(cases, counted, strict=True):
        if isinstance(counts, StepFailure):
            found.append(f"{name}: {counts.kind}: {counts.error}")
            continue
        values = (
            counts.launches, counts.total.bytes_moved / 1e6, counts.peak_bytes / MIB,
            counts.num_waits, counts.num_copies,
        )  # fmt: skip
        if not all(most / 2 <= value <= most for value, most in zip(values, bounds, strict=True)):
            found.append(f"{name}: {tuple(round(v, 1) for v in values)}, bounds {tuple(bounds)}")
    return found


def make_folder(folder: Path, shape: Mapping[str, int], config: str = "Qwen3Config") -> None:
    """Write the configuration of a model, without weights."""
    made = getattr(transformers, config)(
        **{"max_position_embeddings": 65_536, "tie_word_embeddings": True, **shape}
    )
    made.save_pretrained(folder)


def step_of_a_group(folder: Path, **settings: Any) -> StepRequest:
    """Return a step on 16 answers of about 1k to a prompt of 4k."""
    (family,) = (each for each in FAMILIES if each.name == ROWS)
    lengths = family.make(random.Random(0)).row_lengths()
    return StepRequest(
        model=str(folder),
        prompt_tokens=4096,
        answer_tokens=tuple(length - 4096 for length in lengths),
        settings={"dtype": "bfloat16", "max_tokens": 40_000, **settings},
    )


def tiny_step(folder: Path, algorithm: str, settings: Mapping[str, Any]) -> StepRequest:
    """Return a first step on 16 answers to a prompt of 256, in groups of 4."""
    return StepRequest(
        model=str(folder),
        prompt_tokens=256,
        answer_tokens=(60, 70) * 8,
        group_size=4,
        algorithm=algorithm,
        settings={"dtype": "bfloat16", "max_tokens": 4000, **settings},
        num_steps=1,
    )


def run_script(code: str, *arguments: str) -> str:
    """Return what a script prints that has a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=600, env=own_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def own_environment() -> dict[str, str]:
    """Return the environment without the interpreter of kernels, in which tests run."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

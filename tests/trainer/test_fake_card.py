"""A card that is not there: ops are counted as worked out by hand, steps ask no more than before.

Not here: the steps that the gate counts (`tests/proofs/test_card.py`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from counted_steps import FIGURES, check, find_excess, list_all, read_table, tiny, write_shape

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
    table = torch.empty(1000, 64, **half)
    rows = torch.empty(3, 64, **half)
    places = torch.empty(3, dtype=torch.int64, device="cuda")
    card.clear()
    torch.nn.functional.embedding(places, table)
    table.index_add_(0, places, rows)
    table.index_put_((places,), rows)
    table.copy_(torch.zeros_like(table))
    found["indexed"] = dataclasses.asdict(card.counts())
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
        shape = AutoConfig.from_pretrained(path)
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    with compared_peak(path, algorithm, config, print):
        Trainer(model.train(), "grpo", args=config).rehearse()
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
    indexed = StepCounts.of(found["indexed"])
    three, table, places = 3 * 64 * 2, 1000 * 64 * 2, 3 * 8
    assert {name: op.bytes_moved for name, op in indexed.ops.items()} == {
        "embedding": places + 2 * three,
        "index_add_": places + 3 * three,
        "index_put_": places + 3 * three,
        "zeros_like": table,
        "copy_": 2 * table,
    }
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


@pytest.mark.slow
def test_what_a_rehearsal_takes_is_told_beside_the_prediction(tmp_path: Path) -> None:
    model = write_shape(tmp_path, "tiny")
    told = run_script(REHEARSED, model, "grpo")
    taken, predicted = (
        float(n.replace(",", "")) for n in re.findall(r"([\d.,]+) (?:MiB|were)", told)
    )
    num = 1000 * 128 + 2 * 128 * (2 * 64 + 64) + 3 * 128 * 384  # weights that are matrices
    assert taken == predicted
    assert (4 + 2) * num < taken * MIB < 2 * (4 + 2) * num  # masters, gradients and little more
    assert "could not be predicted: UnknownNameError" in run_script(REHEARSED, model, "grp")


def test_a_model_or_a_setting_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    model = write_shape(tmp_path, "tiny")
    requests = [tiny(str(tmp_path / "nowhere")), tiny(model, lora_rnak=4)]
    no_model, no_setting = count_steps(requests)
    assert isinstance(no_model, StepFailure) and isinstance(no_setting, StepFailure)
    assert no_model.kind == "UsageError" and "nowhere" in no_model.error
    assert no_setting.kind == "UnknownNameError" and "lora_rank" in no_setting.error


def test_a_step_that_asks_more_than_its_row_is_told() -> None:
    row = {"subject": "tiny grpo", **dict.fromkeys(FIGURES, "100")}
    assert find_excess(row, {"tiny grpo": row}) == []
    more, few = ({**row, "waits": waits} for waits in ("101", "89"))
    assert find_excess(more, {"tiny grpo": row}) == ["tiny grpo: waits 101, its row says 100"]
    assert find_excess(few, {"tiny grpo": row}) == ["tiny grpo: waits 89, its row says 100"]
    assert "no row" in find_excess({**row, "subject": "new"}, {"tiny grpo": row})[0]


def test_the_table_has_a_row_for_every_algorithm_and_subject(tmp_path: Path) -> None:
    assert [*dict(list_all(tmp_path))] == [*read_table()]
    told = {name.removeprefix("tiny ") for name in read_table() if name.startswith("tiny ")}
    assert told >= {*ALGORITHMS} - {"dpo"}


@pytest.mark.slow
def test_all_subjects_ask_no_more_of_a_card_than_before(tmp_path: Path) -> None:
    assert check(dict(list_all(tmp_path))) == []


@pytest.mark.slow
def test_doctor_says_what_of_a_model_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "doctor",
        "--model",
        write_shape(tmp_path, "tiny"),
        "--tokens",
        "2000",
        "--cards",
        "2",
    ]
    assert main([*command, "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)
    assert [fit["setting"] for fit in fits] == [*SETTINGS]
    assert all(fit["has_room"] for fit in fits)
    layer = 128 * 64 * (2 + 1 + 1 + 2) + 3 * 128 * 384 + 2 * 128 + 2 * 64
    rest = 1000 * 128 + 128
    gathered, scattered = 2 * (2 * layer + rest), 4 * (layer + rest)  # a layer for each direction
    numbers = 4 * 13  # norms of so many weights, added up
    assert fits[0]["received_bytes"] == (gathered + scattered) // 2 + numbers
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
        peak_bytes=8 * gib, begun_bytes=0, held_bytes=0, ops={"mm": op, "mul": op},
        waits={"item": 5}, attention_s=1, received_bytes=6,
    )  # fmt: skip
    assert ModelFit.of("all", counts, 10 * gib) == ModelFit(
        setting="all", has_room=False, peak_bytes=8 * gib, least_s=1.5, bytes_moved=20,
        received_bytes=6, launches=6, num_waits=5,
    )  # fmt: skip


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

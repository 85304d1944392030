"""Layers that carry a state, on forests: as exact as the rows' own formulas, or refused."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from test_hugging_face_models import check_exact, check_logprobs
from tiny_families import RECURRENT, make, row_logprobs, sample_rows

from katgym_kernels.tree_plan import parents
from katgym_trainer import Row, forward_backward, loss, pack
from katgym_trainer.models.segments import Layout, Segments
from katgym_trainer.plans.forest_plans import ForestPlans


@pytest.mark.slow
@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_families_are_exact_whole_and_in_parts(family: str) -> None:
    model = make(family, attn_implementation="eager")
    rows = sample_rows()
    check_logprobs(model, rows)
    check_exact(model, rows, "grpo")
    for size in (11, 2):  # shorter than the convolution's kernel
        check_exact(model, rows, "grpo", in_parts=size)


def test_rows_of_several_chunks_are_exact(subtests: pytest.Subtests) -> None:
    rows = sample_rows(1, num_prompt=150)
    for family in ["Qwen3_5Text", "Mamba2"]:
        with subtests.test(family=family):
            model = make(family)
            check_exact(model, rows, "sft", max_tokens=1000)
            check_exact(model, rows, "sft", max_tokens=1000, in_parts=70)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Qwen3Next", "FalconH1", "Jamba"])
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    model = make(family)
    model.activation_checkpointing_enable()
    check_exact(model, sample_rows(), "grpo")
    check_exact(model, sample_rows(), "grpo", in_parts=11)


def test_time_steps_that_cannot_be_zero_are_not_padded() -> None:
    model = make("Mamba2", time_step_limit=(0.2, 5.0))
    check_exact(model, sample_rows(), "grpo")


def test_layers_are_as_before_outside_of_a_forest() -> None:
    model = make("Qwen3_5Text")
    (row, *_) = rows = sample_rows()
    before = row_logprobs(model, row)
    forward_backward(model, pack(rows, max_tokens=60), loss("sft"))
    assert torch.equal(row_logprobs(model, row), before)


def test_a_layer_that_runs_twice_a_token_is_exact_in_parts_but_not_checkpointed() -> None:
    model = make("HrmText")
    check_exact(model, sample_rows(), "sft", in_parts=11)
    model.activation_checkpointing_enable()
    forests = [forest.in_parts(11) for forest in pack(sample_rows(), max_tokens=60)]
    with pytest.raises(ValueError, match=r"runs \d+ times a token: .* activation checkpointing"):
        forward_backward(model, forests, loss("sft"))


class _OwnConvolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 2, 2)


def test_states_computed_by_code_of_its_own_are_refused() -> None:
    model = make("Qwen3")
    model.model.layers[1].mixer = _OwnConvolution()
    forests = pack(sample_rows(), max_tokens=60)
    words = r"has a _OwnConvolution at 'model.layers.1.mixer', whose state runs along the packed"
    with pytest.raises(ValueError, match=words):
        forward_backward(model, forests, loss("sft"))


def test_attention_of_its_own_is_refused(subtests: pytest.Subtests) -> None:
    for family, options, words in [
        ("Doge", {"keep_window_size": 8}, "DogeAttention makes a mask of its own"),
        ("Bloom", {"n_layer": 2, "n_head": 4}, r"layers \[0, 1\] that ran no tree attention"),
        ("Falcon", {"alibi": True}, "FalconAttention has alibi, a bias by place in the packed"),
    ]:
        with subtests.test(family=family):
            config = getattr(transformers, f"{family}Config")(
                vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, pad_token_id=0, attention_dropout=0.0, hidden_dropout=0.0,
                **options,
            )  # fmt: skip
            model = getattr(transformers, f"{family}ForCausalLM")(config)
            with pytest.raises(ValueError, match=words):
                forward_backward(model, pack(sample_rows(), max_tokens=60), loss("sft"))


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    """Draw `end` of a forest."""
    depths = [0]
    for _ in range(draw(st.integers(0, 40))):
        depths.append(draw(st.integers(0, depths[-1] + 1)))
    return [
        next((j for j in range(i + 1, len(depths)) if depths[j] <= depths[i]), len(depths))
        for i in range(len(depths))
    ]


@given(end=forests(), layout=st.sampled_from(list(Layout)), seed=st.integers(0, 99))
def test_segments_carry_a_sum_along_every_path(end: list[int], layout: Layout, seed: int) -> None:
    """A scan that adds up token numbers, over segments, is what each path adds up to."""
    num = len(end)
    exits = torch.tensor(sorted(random.Random(seed).sample(range(num), min(3, num))))
    device = torch.device("cpu")
    segments = Segments.of(torch.tensor(end), exits, device=device, layout=layout)
    above, sums, states = torch.zeros(1, dtype=torch.int64), [], []
    for level in segments.levels:
        kept = []
        for group in level:
            initial = above[group.parents_B]
            if layout is Layout.CONCATENATED:
                pieces = group.tokens_BT[0].split(group.lengths_B.tolist())
                runs = [
                    piece.cumsum(0) + start for piece, start in zip(pieces, initial, strict=True)
                ]
                sums.append(torch.cat(runs))
                final = torch.stack([run[-1] for run in runs])
            else:
                tokens = group.tokens_BT.masked_fill(group.is_padding_BT, 0)
                runs_BT = tokens.cumsum(1) + initial[:, None]
                sums.append(runs_BT.flatten())
                final = runs_BT[:, -1]
            kept.append(final[group.kept])
        above = torch.cat(kept)
        states.append(above)
    parent = parents(torch.tensor(end)).tolist()
    wanted: list[int] = []
    for token in range(num):
        wanted.append(token + (wanted[parent[token]] if parent[token] >= 0 else 0))
    assert torch.cat(sums)[segments.order_N].tolist() == wanted
    assert torch.cat(states)[segments.exits].tolist() == [wanted[e] for e in exits.tolist()]


@given(end=forests(), size=st.integers(1, 5))
def test_windows_are_the_last_ancestors(end: list[int], size: int) -> None:
    plans = ForestPlans(torch.tensor(end), torch.zeros(len(end)), device=torch.device("cpu"))
    windows, moved = plans.windows(size)
    parent = parents(torch.tensor(end)).tolist()
    for token in range(len(end)):
        path = list(range(size - 1))  # what lies above the roots
        chain = [token]
        while parent[chain[0]] >= 0:
            chain.insert(0, parent[chain[0]])
        wanted = (path + [t + size - 1 for t in chain])[-size:]
        assert windows[token].tolist() == wanted
        lies_apart = any(b - a != 1 for a, b in itertools.pairwise(wanted))
        assert (token in moved.tolist()) == lies_apart


def test_rows_may_be_of_one_token_and_begin_others(subtests: pytest.Subtests) -> None:
    rows = [
        Row([7, 8], [0, 1]), Row([7, 8, 9, 10, 11], [0, 0, 0, 1, 1]),
        Row([7, 8, 9, 12], [0, 1, 0, 1]), Row([5, 5], [0, 1]),
    ]  # fmt: skip
    for family in ["Qwen3_5Text", "Lfm2", "Jamba", "MiniMax"]:
        with subtests.test(family=family):
            model = make(family)
            check_exact(model, rows, "sft")
            check_exact(model, rows, "sft", in_parts=2)

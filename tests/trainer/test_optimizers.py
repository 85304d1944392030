"""Optimizers beside their formulas, schedules by numbers, clipping, states by name."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from katgym_trainer.optimization.optimizers import (
    Optimizer,
    clip_gradients,
    make_optimizer,
    schedule_factor,
)
from katgym_trainer.trainer_config import TrainerConfig


def parameters(seed: int = 0) -> dict[str, Tensor]:
    """Return a matrix, an embedding, a vector and a stack of matrices."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"layer.weight": (6, 4), "embed.weight": (7, 4), "norm.weight": (4,), "exp": (2, 3, 3)}
    return {
        name: torch.randn(*shape, generator=rng, dtype=torch.float64).float().requires_grad_()
        for name, shape in shapes.items()
    }


def give_gradients(tensors: dict[str, Tensor], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        tensor.grad = torch.randn(tensor.shape, generator=rng)


def test_adamw_is_its_formula_and_decays_no_vector() -> None:
    config = TrainerConfig(learning_rate=0.01, weight_decay=0.5, beta1=0.8, beta2=0.9)
    tensors = parameters()
    optimizer = make_optimizer(tensors.items(), config)
    wanted = {name: tensor.detach().double() for name, tensor in tensors.items()}
    mean = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    square = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    for step in (1, 2, 3):
        give_gradients(tensors, step)
        for name, tensor in tensors.items():
            gradient = tensor.grad.double()
            mean[name] = 0.8 * mean[name] + 0.2 * gradient
            square[name] = 0.9 * square[name] + 0.1 * gradient**2
            first = mean[name] / (1 - 0.8**step)
            second = square[name] / (1 - 0.9**step)
            decay = 0.0 if name == "norm.weight" else 0.5
            wanted[name] = wanted[name] * (1 - 0.01 * decay)
            wanted[name] = wanted[name] - 0.01 * first / (second.sqrt() + 1e-8)
        optimizer.step()
        optimizer.zero_grad()
    for name, tensor in tensors.items():
        assert tensor.grad is None
        assert torch.allclose(tensor.detach().double(), wanted[name], rtol=0, atol=1e-6), name


def test_muon_takes_hidden_matrices_and_moves_them_as_far_as_adamw_would() -> None:
    tensors = {"w": torch.zeros(24, 16, requires_grad=True), "e": torch.zeros(9, 16)}
    tensors["e"].requires_grad_()
    optimizer = make_optimizer(
        tensors.items(), TrainerConfig(optimizer="muon", learning_rate=0.01), vocabulary={"e"}
    )
    assert sorted(optimizer.state_dict()) == []
    give_gradients(tensors, 0)
    left, _, right = torch.linalg.svd(tensors["w"].grad, full_matrices=False)
    optimizer.step()
    update = -tensors["w"].detach() / 0.01
    # All singular values of the orthogonal matrix U V^T are 1; five Newton-Schulz steps leave them
    # between 0.68 and 1.14 (kellerjordan.github.io/posts/muon), bfloat16 a little more.
    scale = 0.2 * math.sqrt(24)
    singular = torch.linalg.svdvals(update) / scale
    assert float(singular.min()) > 0.6 and float(singular.max()) < 1.25
    assert float((update * (left @ right)).sum() / update.norm() / 4) > 0.97  # |U V^T| = sqrt(16)
    assert float(update.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)
    assert sorted(optimizer.state_dict()) == [
        "e.exp_avg", "e.exp_avg_sq", "e.step", "w.momentum_buffer",
    ]  # fmt: skip


def test_muon_leaves_vectors_stacks_and_vocabulary_to_adamw() -> None:
    tensors = parameters()
    config = TrainerConfig(optimizer="muon")
    optimizer = make_optimizer(tensors.items(), config, vocabulary={"embed.weight"})
    give_gradients(tensors, 0)
    optimizer.step()
    by_muon = {key for key in optimizer.state_dict() if key.endswith("momentum_buffer")}
    assert by_muon == {"layer.weight.momentum_buffer"}
    only = {"layer.weight": tensors["layer.weight"]}
    assert len(make_optimizer(only.items(), config).parts) == 1


def test_a_state_by_name_goes_on_bit_for_bit(subtests: pytest.Subtests) -> None:
    for name in ["adamw", "muon"]:
        with subtests.test(name=name):
            config = TrainerConfig(optimizer=name, learning_rate=0.1, weight_decay=0.1)
            one, other = parameters(), parameters()
            first = make_optimizer(one.items(), config, vocabulary={"embed.weight"})
            for step in range(3):
                give_gradients(one, step)
                first.step()
            # Another order of the parameters, as another process may have it.
            second = make_optimizer(reversed(other.items()), config, vocabulary={"embed.weight"})
            second.load_state_dict(first.state_dict())
            for key, tensor in one.items():
                other[key].data.copy_(tensor.data)
            for tensors, optimizer in ((one, first), (other, second)):
                give_gradients(tensors, 9)
                optimizer.step()
            assert all(torch.equal(one[key], other[key]) for key in one)
            # The loaded state is a copy: going on with one optimizer left the other's alone.
            assert all(
                torch.equal(first.state_dict()[k], v) for k, v in second.state_dict().items()
            )
            assert not any(first.state_dict()[k] is v for k, v in second.state_dict().items())


def stepped(tensors: dict[str, Tensor]) -> Optimizer:
    optimizer = make_optimizer(tensors.items(), TrainerConfig())
    give_gradients(tensors, 0)
    optimizer.step()
    return optimizer


def test_states_of_other_parameters_are_refused_and_change_nothing() -> None:
    optimizer = make_optimizer((tensors := parameters()).items(), TrainerConfig())
    give_gradients(tensors, 0)
    optimizer.step()
    state = {key: value.clone() for key, value in optimizer.state_dict().items()}
    lacking = {key: value for key, value in state.items() if key != "exp.step"}
    for other, words in (
        ({**state, "other.exp_avg": torch.zeros(1)}, "has no state 'other.exp_avg'"),
        ({**state, "norm.weight.exp_avg": torch.zeros(5)}, r"has shape \[5\], .* is \[4\]"),
        (lacking, "state of 'exp' lacks 'step'"),
    ):
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(other)
    assert all(torch.equal(state[k], v) for k, v in optimizer.state_dict().items())
    with pytest.raises(ValueError, match="there is no parameter to train"):
        make_optimizer([], TrainerConfig())


def test_schedules_by_numbers() -> None:
    constant = TrainerConfig(num_warmup_steps=4)
    assert [schedule_factor(s, constant) for s in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert schedule_factor(0, TrainerConfig()) == 1
    linear = TrainerConfig(schedule="linear", num_warmup_steps=2, num_steps=6, final_fraction=0.2)
    found = [schedule_factor(s, linear) for s in range(9)]
    assert found == pytest.approx([0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    cosine = TrainerConfig(schedule="cosine", num_steps=4)
    half = math.sqrt(0.5)
    wanted = [1, (1 + half) / 2, 0.5, (1 - half) / 2, 0, 0]
    assert [schedule_factor(s, cosine) for s in range(6)] == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(ValueError, match="step is an int >= 0, got -1"):
        schedule_factor(-1, cosine)


@given(
    warmup=st.integers(0, 30),
    more=st.integers(1, 50),
    final=st.floats(0, 1),
    schedule=st.sampled_from(["linear", "cosine"]),
)
def test_schedules_rise_then_fall_to_what_is_left(
    warmup: int, more: int, final: float, schedule: str
) -> None:
    config = TrainerConfig(
        schedule=schedule, num_warmup_steps=warmup, num_steps=warmup + more, final_fraction=final
    )
    factors = [schedule_factor(s, config) for s in range(warmup + more + 2)]
    rising, falling = factors[: max(warmup, 1)], factors[warmup:]
    assert rising == sorted(rising) and falling == sorted(falling, reverse=True)
    assert max(factors) == 1 and factors[-1] == pytest.approx(final)


def test_clipping_shortens_to_the_norm_and_tells_what_it_was() -> None:
    one, other = torch.zeros(1, requires_grad=True), torch.zeros(2, requires_grad=True)
    unused = torch.zeros(3, requires_grad=True)
    one.grad, other.grad = torch.tensor([3.0]), torch.tensor([0.0, 4.0])
    assert clip_gradients([one, other, unused], None) == 5.0
    assert clip_gradients([one, other, unused], 7.0) == 5.0
    assert one.grad.tolist() == [3.0]
    assert clip_gradients([one, other, unused], 1.0) == 5.0
    assert one.grad.tolist() == pytest.approx([0.6], rel=1e-5)
    assert other.grad.tolist() == pytest.approx([0.0, 0.8], rel=1e-5)
    assert clip_gradients([unused], 1.0) == 0.0


def test_a_norm_that_is_not_finite_is_told_and_nothing_is_scaled() -> None:
    for bad in [math.nan, math.inf, -math.inf]:
        one = torch.zeros(2, requires_grad=True)
        one.grad = torch.tensor([bad, 2.0])
        assert not math.isfinite(clip_gradients([one], 1.0))
        assert float(one.grad[1]) == 2.0

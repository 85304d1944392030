"""float32 masters, and rounding at random without them: what bfloat16 would lose is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_qwen import group_of_rows, tiny_qwen, weights

from katgym_trainer import Row, forward_backward, loss, pack
from katgym_trainer.optimization.master_weights import MasterWeights, round_stochastically
from katgym_trainer.optimization.optimizers import make_optimizer
from katgym_trainer.trainer_config import TrainerConfig


def in_bfloat16(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def test_updates_too_small_for_bfloat16_add_up() -> None:
    alone = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    masters = MasterWeights([("w", parameter)])
    config = TrainerConfig(learning_rate=1e-3)
    with_masters = make_optimizer(masters.named(), config)
    without = make_optimizer([("w", alone)], config)
    for step in range(1, 11):
        parameter.sum().backward()
        alone.sum().backward()
        with_masters.step(masters)
        without.step()
        with_masters.zero_grad()
        without.zero_grad()
        # A constant gradient moves AdamW by its learning rate; the bfloat16 below 1 is 1 - 1/256.
        master = dict(masters.named())["w"].detach()
        assert master.tolist() == pytest.approx([1 - step * 1e-3] * 3, abs=1e-6)
        assert parameter.tolist() == [float(master[0].bfloat16())] * 3
    assert alone.tolist() == [1, 1, 1]
    assert parameter.tolist() == [1 - 3 / 256] * 3  # 0.99, rounded


def test_gradients_of_many_forests_are_added_up_in_float32() -> None:
    longer = [row for seed in range(32) for row in group_of_rows([1.0], seed=seed)]
    rows = [Row(row.token_ids[:7], row.loss_mask[:7]) for row in longer]  # 2 trained tokens each
    forests = pack(rows, max_tokens=7)
    assert len(forests) == 32
    plain, mastered, single = (in_bfloat16(tiny_qwen()) for _ in range(3))
    masters = MasterWeights(mastered.named_parameters())
    for model in (plain, mastered):
        forward_backward(model, forests, loss("sft"))
    wanted = {name: torch.zeros(p.shape).double() for name, p in single.named_parameters()}
    for forest in forests:  # by itself its mean is over 2 tokens, not 64: 32 times as much
        forward_backward(single, [forest], loss("sft"))
        for name, parameter in single.named_parameters():
            assert parameter.grad is not None
            wanted[name] += parameter.grad.double() / 32
        single.zero_grad()
    errors = []
    for named in (plain.named_parameters(), masters.named()):
        off = [(p.grad.double() - wanted[name]).flatten() for name, p in named]
        errors.append(float(torch.cat(off).norm()))
    assert all(m.grad is not None and m.grad.dtype is torch.float32 for _, m in masters.named())
    assert all(p.grad is None for p in mastered.parameters())
    assert errors[1] < 1e-4 * errors[0]


def test_the_sum_is_that_of_every_gradient_by_itself() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.bfloat16))
    masters = MasterWeights([("w", parameter)])
    (parameter * 256).sum().backward()
    for _ in range(100):
        (parameter * 0.5).sum().backward()  # 256 + 0.5 is 256 in bfloat16
    assert [m.grad.tolist() for _, m in masters.named() if m.grad is not None] == [[306.0]]
    masters.scale_gradients(0.5)
    assert [m.grad.tolist() for _, m in masters.named() if m.grad is not None] == [[153.0]]
    masters.clear_gradients()
    assert [m.grad for _, m in masters.named()] == [None]


def test_wide_parameters_are_their_own_masters() -> None:
    single = torch.nn.Parameter(torch.ones(2))
    double = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    masters = MasterWeights([("a", single), ("b", double)])
    assert dict(masters.named())["a"] is single and dict(masters.named())["b"] is double
    single.sum().backward()
    assert single.grad is not None
    masters.clear_gradients()
    assert single.grad is None


def test_rounding_at_random_gives_a_neighbour_with_the_value_as_mean() -> None:
    rng = torch.Generator().manual_seed(0)
    num = 40_000
    for value, low, high in ((1.001, 1.0, 1 + 1 / 128), (-2.99, -3.0, -3 + 1 / 64), (5e-40, 0, 1)):
        found = round_stochastically(torch.full((num,), value), rng).double()
        if high == 1:  # subnormal: spaced 2^-133
            low, high = 5 * 2.0**-133, 6 * 2.0**-133
        assert set(found.unique().tolist()) == {low, high}
        share = (value - low) / (high - low)
        deviation = (share * (1 - share) / num) ** 0.5
        assert float((found == high).double().mean()) == pytest.approx(share, abs=5 * deviation)
    exact = torch.tensor([0.0, -0.0, 1.0, -1.5, 3.0e38, torch.inf, -torch.inf])
    for _ in range(20):
        found = round_stochastically(exact.bfloat16().float(), rng)
        assert torch.equal(found, exact.bfloat16())
    every_bit = torch.tensor([0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    assert bool(round_stochastically(every_bit, rng).isnan().all())


def test_updates_below_half_a_digit_add_up_in_the_mean_without_masters() -> None:
    num, num_steps, rate = 20_000, 100, 1e-4  # half a digit below 1 is 1 / 512
    found = {}
    for rounding in ("nearest", "stochastic"):
        parameter = torch.nn.Parameter(torch.ones(num, dtype=torch.bfloat16))
        masters = MasterWeights([("w", parameter)], is_kept=False)
        config = TrainerConfig(learning_rate=rate, dtype="bfloat16", rounding=rounding)
        optimizer = make_optimizer(masters.named(), config)
        masters.reseed(0)
        for _ in range(num_steps):
            parameter.sum().backward()
            if rounding == "stochastic":
                optimizer.step(masters)
            else:
                with masters.hold(dict(masters.named()).values()):
                    optimizer.step()
                    for _, master in masters.named():
                        master.data = master.bfloat16().float()
            masters.clear_gradients()
        found[rounding] = parameter.detach().double()
    assert bool((found["nearest"] == 1).all())  # where each update alone is rounded, none is left
    chance = rate * 256  # of one step of 1 / 256
    deviation = (num_steps * chance * (1 - chance) / num) ** 0.5 / 256
    wanted = 1 - num_steps * rate
    assert float(found["stochastic"].mean()) == pytest.approx(wanted, abs=5 * deviation)
    assert len(found["stochastic"].unique()) > 5


def test_masters_that_are_not_kept_take_no_memory_and_sum_gradients_in_float32() -> None:
    parameter = torch.nn.Parameter(torch.full((3, 5), 2.0, dtype=torch.bfloat16))
    masters = MasterWeights([("w", parameter)], is_kept=False)
    master = dict(masters.named())["w"]
    assert master.shape == (3, 5) and master.untyped_storage().nbytes() == 4
    assert masters.weights()["w"] is parameter
    for factor in (256, 0.5, 0.5):
        (parameter * factor).sum().backward()
    assert master.grad is not None and master.grad.dtype is torch.float32
    assert master.grad.unique().tolist() == [257.0]
    with pytest.raises(RuntimeError, match="call reseed first"), masters.hold([master]):
        pass
    masters.reseed(1, 2)
    with masters.hold([master]):
        assert torch.equal(master, parameter.float())
    assert master.untyped_storage().nbytes() == 4 and parameter.unique().tolist() == [2.0]
    masters.load({"w": torch.full((3, 5), 1.001)})
    assert parameter.unique().tolist() == [1.0]


def test_weights_of_any_shape_are_rounded_in_place(subtests: pytest.Subtests) -> None:
    for shape in [(), (0, 3), (1,), (5, 1 << 22), (3, 4, 5)]:
        turned = torch.ones(shape[::-1]).permute(list(range(len(shape)))[::-1])
        for weight in (torch.ones(shape), turned):
            with subtests.test(shape=shape, stride=weight.stride()):
                parameter = torch.nn.Parameter(weight.bfloat16())
                masters = MasterWeights([("w", parameter)], is_kept=False)
                masters.reseed(0)
                with masters.hold([m for _, m in masters.named()]):
                    for _, master in masters.named():
                        master.data += 2  # exact
                assert torch.equal(parameter, torch.full_like(parameter, 3))


def test_rounding_draws_what_its_seed_says() -> None:
    def moved(*entropy: int) -> list[float]:
        parameter = torch.nn.Parameter(torch.ones(50, dtype=torch.bfloat16))
        masters = MasterWeights([("w", parameter)], is_kept=False)
        masters.reseed(*entropy)
        (master,) = (m for _, m in masters.named())
        with masters.hold([master]):
            master.data -= 1e-3
        found: list[float] = parameter.tolist()
        return found

    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert moved(0, 1) == moved(0, 1)
    assert moved(0, 1) != moved(0, 2) and moved(0, 1) != moved(1, 1)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's numbers are drawn


def test_loading_rounds_into_the_model_and_other_dtypes_are_refused() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    masters = MasterWeights([("w", parameter)])
    masters.load({"w": torch.tensor([1.001])})
    assert dict(masters.named())["w"].tolist() == pytest.approx([1.001], abs=1e-7)
    assert parameter.tolist() == [1.0]
    half = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"parameter 'w' is torch.float16; float32, float64 and"):
        MasterWeights([("w", half)])


def test_a_closed_one_leaves_gradients_to_others() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    first = MasterWeights([("w", parameter)])
    second = MasterWeights([("w", parameter)])
    with pytest.raises(RuntimeError, match="taken by other master weights"):
        parameter.sum().backward()
    first.clear_gradients()
    first.close()
    first.close()
    parameter.sum().backward()
    assert [m.grad.tolist() for _, m in second.named() if m.grad is not None] == [[1.0]]
    second.close()
    parameter.sum().backward()
    assert parameter.grad is not None


def test_tied_weights_have_one_master() -> None:
    model = in_bfloat16(tiny_qwen())
    masters = MasterWeights(model.named_parameters())
    assert "model.embed_tokens.weight" in dict(masters.named())
    assert "lm_head.weight" not in dict(masters.named())
    before = weights(model)
    forward_backward(model, pack([Row([3, 4, 5], [0, 1, 1])], max_tokens=9), loss("sft"))
    for _, master in masters.named():
        with masters.hold([master]):
            master.data += 1
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert not torch.equal(model.lm_head.weight, before["model.embed_tokens.weight"])

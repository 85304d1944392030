"""Routers that take given experts, against routers that are written out here.

At the end: which families of transformers replay, seen where their experts run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from nightly import IS_NIGHT, some_of
from row_by_row import total_loss
from tiny_families import RECURRENT, gradients, make, row_outputs, sample_rows
from tiny_model import TinyModel
from torch import Tensor

from katgym_trainer import (
    Critic,
    Row,
    RowRoutes,
    Trainer,
    forward_backward,
    loss,
    pack,
    prune,
    trainer_logprobs,
)
from katgym_trainer.logprobs.logprob_block import logprob_blocks
from katgym_trainer.models.pretrained import checkpoint_activations
from katgym_trainer.packing.packed_forest import PackedForest

NUM_LAYERS, NUM_EXPERTS, TOP_K = 2, 4, 2
GROUPS = {"n_group": 2, "topk_group": 1}


def softmaxed(router: Any, x_ND: Tensor, experts_NK: Tensor) -> Tensor:
    """Weights of given experts: of a softmax over all, normalised where the router does that."""
    chosen = (x_ND @ router.weight.T).softmax(-1).gather(1, experts_NK)
    is_normalised = getattr(router, "norm_topk_prob", True)
    return chosen / chosen.sum(-1, keepdim=True) if is_normalised else chosen


def softmaxed_after(router: Any, x_ND: Tensor, experts_NK: Tensor) -> Tensor:
    logits = x_ND @ router.weight.T + getattr(router, "bias", 0.0)
    return logits.gather(1, experts_NK).softmax(-1)


def sigmoids(router: Any, x_ND: Tensor, experts_NK: Tensor) -> Tensor:
    chosen = (x_ND @ router.weight.T).sigmoid().gather(1, experts_NK)
    return chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * router.routed_scaling_factor


def scaled(router: Any, x_ND: Tensor, experts_NK: Tensor) -> Tensor:
    chosen = (x_ND @ router.weight.T).softmax(-1).gather(1, experts_NK)
    return chosen * router.routed_scaling_factor


ROUTERS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "Mixtral": (softmaxed, {}),
    "Qwen3Moe": (softmaxed, {}),
    "Olmoe": (softmaxed, {}),
    "Qwen3Next": (softmaxed, {}),
    "GptOss": (softmaxed_after, {}),
    "GraniteMoe": (softmaxed_after, {}),
    "DeepseekV3": (sigmoids, GROUPS),
    "DeepseekV2": (scaled, {}),
}
DENSE = {"DeepseekV2": [0], "DeepseekV3": [0]}
CHOSEN = list(ROUTERS) if IS_NIGHT else ["Qwen3Next", "GptOss", "DeepseekV3", "DeepseekV2"]
"""By day one with each way to weigh."""
REPLAY = [
    "afmoe", "axk1", "bailing_hybrid", "cohere2_moe", "deepseek_v2", "deepseek_v3", "dots1",
    "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "gpt_oss",
    "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "hy_v3", "jamba",
    "kimi_linear", "kolibri1", "laguna", "mellum", "mimo_v2_flash", "minimax", "minimax_m2",
    "mixtral", "olmoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next",
    "qwen4_exp_text", "solar_open",
]  # fmt: skip


def made(family: str) -> Any:
    model = make(family, **ROUTERS[family][1])
    for name, parameter in model.named_parameters():
        if "router" in name or "gate.weight" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def routed(row: Row, family: str = "Mixtral", *, seed: str = "", told: float = 1.0) -> Row:
    """Return a row with drawn routes: tokens with the same prefix have the same."""
    experts = np.zeros((len(row), NUM_LAYERS, TOP_K), dtype=np.uint8)
    is_told = np.zeros(len(row), dtype=bool)
    for t in range(len(row)):
        rng = random.Random(f"{seed} {row.token_ids[: t + 1].tolist()}")
        is_told[t] = rng.random() < told
        for layer in range(NUM_LAYERS):
            if layer not in DENSE.get(family, ()):
                low = rng.choice([0, 2])  # of one group, where there are groups
                pair = [low, low + 1] if family.startswith("Deep") else range(NUM_EXPERTS)
                experts[t, layer] = rng.sample(list(pair), TOP_K)
    return row.replace(routes=RowRoutes(experts, is_told))


def routers(model: Any) -> list[Any]:
    return [m for m in model.modules() if re.search("Router$|TopKGating$", type(m).__name__)]


def flat_outputs(model: Any, row: Row, family: str) -> tuple[Tensor, Tensor]:
    """Run a row by itself, its routers replaced by those written out above."""
    weights = ROUTERS[family][0]
    found = routers(model)
    layers = [n for n in range(NUM_LAYERS) if n not in DENSE.get(family, ())]
    assert len(found) == len(layers)
    for router, layer in zip(found, layers, strict=True):
        given = torch.from_numpy(row.routes.experts_TLK[:, layer].astype(np.int64))

        def forward(x: Tensor, router: Any = router, given: Tensor = given) -> Any:
            return None, weights(router, x.reshape(-1, x.shape[-1]), given), given

        router.forward = forward
    try:
        return row_outputs(model, row)
    finally:
        for router in found:
            del router.forward


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert found.keys() == wanted.keys()
    whole = float(torch.cat([g.flatten() for g in wanted.values()]).norm())
    return float(torch.cat([(found[n] - g).flatten() for n, g in wanted.items()]).norm()) / whole


@pytest.mark.parametrize("family", CHOSEN)
def test_given_experts_run_as_in_a_forward_with_those_experts(family: str) -> None:
    model = made(family)
    rows = [routed(row, family) for row in sample_rows()]
    wanted = total_loss("grpo", rows, lambda row: flat_outputs(model, row, family))
    wanted.backward()
    oracle = gradients(model)
    whole = pack(rows, max_tokens=60)
    parts = [forest.in_parts(12) for forest in pack(rows, max_tokens=400)]
    assert len(parts[0].parts) > 2
    bound = 2e-5 if family in RECURRENT else 5e-6
    for forests in (whole, parts):
        metrics = forward_backward(model, forests, loss("grpo"))
        assert metrics["loss"] == pytest.approx(float(wanted.detach()), rel=2e-5, abs=1e-7)
        assert metrics["route_difference"] > 0.3
        assert distance(gradients(model), oracle) <= bound
    # Without them the routers choose otherwise, and so is the gradient.
    metrics = forward_backward(model, [f.without_routes() for f in whole], loss("grpo"))
    assert "route_difference" not in metrics
    assert distance(gradients(model), oracle) > 1e-2


@pytest.mark.parametrize("family", ["Mixtral", "DeepseekV2"])
def test_layers_that_are_run_again_take_the_given_experts_again(family: str) -> None:
    model = made(family)
    forests = pack([routed(row, family) for row in sample_rows()], max_tokens=60)
    told = forward_backward(model, forests, loss("grpo"))["route_difference"]
    wanted = gradients(model)
    checkpoint_activations(model)
    assert forward_backward(model, forests, loss("grpo"))["route_difference"] == told
    assert distance(gradients(model), wanted) <= 1e-6


def watch_experts(model: Any) -> tuple[dict[int, Tensor], dict[int, Any]]:
    """Return what experts of each layer will be asked for, filled as they run; and the hooks."""
    seen: dict[int, Tensor] = {}
    hooks = {}
    for name, module in model.named_modules():
        if type(module).__name__.endswith("Experts"):
            layer = int(re.search(r"\d+", name)[0])  # type: ignore[index]

            def see(_: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
                given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
                seen[layer] = next(x for x in given if not x.is_floating_point())

            hooks[layer] = module.register_forward_pre_hook(see, with_kwargs=True)
    return seen, hooks


def own_routes(model: Any, forest: PackedForest) -> Tensor:
    """Return what the routers of a model chose for a forest's tokens, seen where experts run."""
    found, hooks = watch_experts(model)
    trainer_logprobs(model, [forest.without_routes()])
    for hook in hooks.values():
        hook.remove()
    routes = torch.zeros((len(forest.input_ids), NUM_LAYERS, TOP_K), dtype=torch.int16)
    for layer, experts in found.items():
        routes[:, layer] = experts.to(torch.int16)
    return routes


@pytest.mark.parametrize("family", CHOSEN)
def test_its_own_experts_change_not_a_bit(family: str) -> None:
    model = made(family)
    (forest,) = pack(sample_rows(), max_tokens=400)
    plain = forward_backward(model, [forest], loss("grpo"))
    wanted = gradients(model)
    routes = own_routes(model, forest)
    same = dataclasses.replace(forest, routes=routes)
    metrics = forward_backward(model, [same], loss("grpo"))
    assert metrics == {**plain, "route_difference": 0.0}
    found = gradients(model)
    assert all(torch.equal(found[name], gradient) for name, gradient in wanted.items())
    # Of one token in another order they are the same experts; of one other expert, others.
    last = NUM_LAYERS - 1
    routes[3, last] = routes[3, last].flip(0)
    assert forward_backward(model, [same], loss("grpo"))["route_difference"] == 0
    routes[3, last, 0] = next(e for e in range(NUM_EXPERTS) if e not in routes[3, last].tolist())
    num_layers = NUM_LAYERS - len(DENSE.get(family, ()))
    wanted_share = 1 / (num_layers * len(forest.input_ids))
    found_share = forward_backward(model, [same], loss("grpo"))["route_difference"]
    assert found_share == pytest.approx(wanted_share)


def test_tokens_that_nobody_told_of_take_the_forwards_own_experts() -> None:
    model = made("Mixtral")
    rows = [routed(row, told=0.5) for row in sample_rows()]
    (forest,) = pack(rows, max_tokens=400)
    own, is_told = own_routes(model, forest), forest.routes[:, :1, :1] >= 0
    assert 0.3 < float(is_told.float().mean()) < 0.7
    # The second layer's own depend on what the first took: settled layer by layer.
    mixed = forest
    for _ in range(NUM_LAYERS):
        mixed = dataclasses.replace(forest, routes=torch.where(is_told, forest.routes, own))
        seen = seen_routes(model, mixed)
        own = torch.where(is_told, own, seen)
    wanted = trainer_logprobs(model, [mixed])
    found = trainer_logprobs(model, [forest])
    assert all(torch.equal(found[place], wanted[place]) for place in wanted)


def seen_routes(model: Any, forest: PackedForest) -> Tensor:
    """Return what routers would choose on top of the given experts of the layers below."""
    chosen: dict[int, Tensor] = {}
    hooks = [
        router.register_forward_pre_hook(
            lambda r, args, n=n: chosen.__setitem__(
                n, (args[0].reshape(-1, args[0].shape[-1]) @ r.weight.T).topk(TOP_K).indices
            )
        )
        for n, router in enumerate(routers(model))
    ]
    trainer_logprobs(model, [forest])
    for hook in hooks:
        hook.remove()
    return torch.stack([chosen[n].to(torch.int16) for n in range(NUM_LAYERS)], 1)


def test_a_shared_token_takes_the_experts_of_the_first_row_that_knows_them() -> None:
    first = np.array([[[0, 1]] * 2, [[0, 2]] * 2, [[0, 3]] * 2], dtype=np.uint8)
    others = np.full((4, 2, 2), 7, dtype=np.uint16)
    rows = [
        Row([5, 6, 7, 9], [0, 0, 1, 1]),
        Row([5, 6, 7], [0, 0, 1], routes=RowRoutes(first, np.array([False, True, False]))),
        Row([5, 6, 7, 8], [0, 0, 1, 1], routes=RowRoutes(others, np.arange(4) < 3)),
    ]
    (forest,) = pack(rows, max_tokens=10)
    assert forest.input_ids.tolist() == [5, 6, 7, 8, 9]
    assert forest.routes is not None and forest.routes.dtype == torch.int16
    assert forest.routes[:, 1].tolist() == [[7, 7], [0, 2], [7, 7], [-1, -1], [-1, -1]]
    parts = forest.in_parts(2).parts
    assert sum(len(p.routes) for p in parts if p.routes is not None) == 5
    assert all(part.routes is None for part in forest.in_parts(2).without_routes().parts)
    assert pack(rows[:1], max_tokens=10)[0].routes is None


def test_rows_that_are_cut_keep_the_experts_of_what_is_left() -> None:
    rows = [routed(row) for row in sample_rows()]
    entropies = [np.linspace(0, 1, len(row)) for row in rows]
    pruned = prune(rows, entropies, max_tokens=30)
    assert any(len(r) < len(rows[p]) for r, p in zip(pruned.rows, pruned.places, strict=True))
    for row, place in zip(pruned.rows, pruned.places, strict=True):
        whole = rows[place].routes
        assert row.routes is not None and whole is not None and len(row.routes) == len(row)
        assert (row.routes.experts_TLK == whole.experts_TLK[: len(row)]).all()


def test_log_probs_are_kept_apart_by_experts() -> None:
    (row, *_) = sample_rows()

    def names(row: Row) -> list[bytes]:
        return [b.key.digest for b in logprob_blocks(row, version="v", temperature=1.0)]

    assert names(routed(row)) == names(routed(row))
    assert len({*names(row), *names(routed(row)), *names(routed(row, seed="other"))}) == 3


def test_a_reference_and_a_critic_choose_their_own_experts() -> None:
    rows = [row.replace(group=0) for row in sample_rows()]
    critic = Critic(made("Mixtral"))
    torch.nn.init.normal_(critic.head.weight)
    plain = critic.values(pack(rows, max_tokens=60))
    found = critic.values(pack([routed(row) for row in rows], max_tokens=60))
    assert all(torch.equal(plain[place], found[place]) for place in plain)
    metrics = []
    for given in (rows, [routed(row) for row in rows]):
        args = {"learning_rate": 1e-9, "max_tokens": 60, "loss": {"kl_coef": 0.1}}
        trainer = Trainer(made("Mixtral"), "grpo", args=args, reference=made("Mixtral"))
        metrics.append(trainer.step_rows(given))
        trainer.close()
    # Policy and reference have the same weights: they differ by the experts that were given.
    assert metrics[0]["train/ref_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics[1]["train/ref_kl"] > 1e-6
    assert "train/route_difference" not in metrics[0]
    assert metrics[1]["train/route_difference"] > 0.3


def of_expert_4(experts: Any) -> Any:
    experts[2, 1, 0] = 4
    return experts


def test_routes_of_another_model_are_refused(subtests: pytest.Subtests) -> None:
    for family, change, words in [
        ("Mixtral", lambda e: np.concatenate([e, e], 1), "of 4 layers, Mixtral.* has 2 layers"),
        ("Mixtral", of_expert_4, "to expert 4, Mixtral.* has 4 in a layer"),
        ("Mixtral", lambda e: e[:, :, :1], "to 1 experts of a token, Mixtral.* takes 2 in layer 0"),
        ("Mixtral", lambda e: e * 0, "routes of layer 0 that name an expert twice"),
        ("Qwen3", lambda e: e, "of 2 layers, Qwen3ForCausalLM has no experts"),
        ("DeepseekV3", lambda e: e, "routes of layer 0, in which DeepseekV3.* asks no torch.topk"),
    ]:
        with subtests.test(words=words):
            rows = []
            for row in sample_rows():
                routes = routed(row).routes
                wrong = RowRoutes(change(routes.experts_TLK.copy()), routes.is_told_T)
                rows.append(row.replace(routes=wrong))
            with pytest.raises(ValueError, match=words) as caught:
                forward_backward(make(family), pack(rows, max_tokens=400), loss("sft"))
            assert "row.replace(routes=None)" in str(caught.value)


def test_compiled_layers_and_models_of_ones_own_say_that_they_replay_none() -> None:
    model = make("Mixtral")
    model.model.layers[0].compile(backend="eager")
    forests = pack([routed(row) for row in sample_rows()], max_tokens=400)
    with pytest.raises(ValueError, match="are compiled, which replay none: leave out should_comp"):
        forward_backward(model, forests, loss("sft"))
    with pytest.raises(ValueError, match=r"is a TreeModel that replays none.*row\.replace"):
        forward_backward(TinyModel(vocabulary=60), forests, loss("sft"))


def test_routes_that_are_none_are_refused() -> None:
    told = np.ones(2, dtype=bool)
    with pytest.raises(ValueError, match="routes are of 2 tokens, token_ids has 3 entries"):
        Row([1, 2, 3], [0, 1, 1], routes=RowRoutes(np.zeros((2, 1, 1), dtype=np.uint8), told))
    with pytest.raises(ValueError, match=r"uint8 or uint16 of \[tokens, layers, .* got int64"):
        RowRoutes(np.zeros((2, 1, 1), dtype=np.int64), told)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="true or false for each of 3 tokens"):
        RowRoutes(np.zeros((3, 1, 1), dtype=np.uint8), told)
    with pytest.raises(ValueError, match="name expert 40000, allowed is 0 to 32767"):
        RowRoutes(np.full((2, 1, 1), 40000, dtype=np.uint16), told)
    two = [
        Row([1, t], [0, 1], routes=RowRoutes(np.zeros((2, 1, t), dtype=np.uint8), told))
        for t in (2, 3)
    ]
    with pytest.raises(ValueError, match=r"routes of \[\(1, 2\), \(1, 3\)\] .*different models"):
        pack(two, max_tokens=10)


@pytest.fixture(scope="module")
def families() -> ModuleType:
    """The script that makes a tiny model of any family."""
    script = Path(__file__).parents[2] / "trainer/benchmarks/model_families.py"
    spec = importlib.util.spec_from_file_location("family_makers", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def routed_in(row: Row, layers: list[int]) -> Row:
    """Return a row with two of four experts for each token, the same after the same tokens."""
    experts = np.zeros((len(row), 2, 2), dtype=np.uint8)
    for t in range(len(row)):
        rng = np.random.default_rng(row.token_ids[: t + 1])
        for layer in layers:
            experts[t, layer] = rng.permutation(4)[:2]
    return row.replace(routes=RowRoutes(experts, np.ones(len(row), dtype=bool)))


def test_families_run_the_experts_that_they_are_given(
    families: ModuleType, subtests: pytest.Subtests
) -> None:
    for family in some_of(REPLAY, 5):
        with subtests.test(family=family):
            model = families.make(family)
            seen, hooks = watch_experts(model)
            rows = [routed_in(row, list(hooks)) for row in families.sample_rows()]
            (forest,) = pack(rows, max_tokens=4096)
            assert forward_backward(model, [forest], loss("sft"))["route_difference"] > 0.5
            assert forest.routes is not None and seen.keys() == hooks.keys()
            for layer, experts in seen.items():
                wanted = forest.routes[:, layer].long().sort(-1).values
                assert torch.equal(experts.sort(-1).values, wanted)


def test_families_that_choose_otherwise_are_refused(families: ModuleType) -> None:
    forests = pack([routed_in(row, [0, 1]) for row in families.sample_rows()], max_tokens=4096)
    with pytest.raises(ValueError, match=r"PhimoeForCausalLM asks no torch.topk over 4 experts"):
        forward_backward(families.make("phimoe"), forests, loss("sft"))

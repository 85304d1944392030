"""Every backend computes what the reference does, outputs and gradients; and which one is taken."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from forests import AWKWARD, caterpillar, ends, fork_at, random_end, star
from hypothesis import given
from hypothesis import strategies as st
from nightly import some_of
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention import choose
from katgym_kernels.attention.reference import reference_attention

EXACT = ["sdpa", "cascade"]
"""Backends that are compared with the reference here."""
MAX_ERROR = {torch.float32: 2e-6, torch.float64: 1e-13}


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    sinks: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Inputs:
        sinks = None if self.sinks is None else self.sinks.to(dtype)
        return Inputs(*(t.to(dtype) for t in (self.q, self.k, self.v, self.grad)), sinks)


def draw(
    num: int,
    *,
    heads: int = 4,
    key_heads: int = 2,
    size: int = 16,
    seed: int = 0,
    sinks: bool = False,
    above: int = 0,
) -> Inputs:
    """Return inputs of a plan of `num` tokens, of which so many are keys alone."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    return Inputs(
        normal(heads, num - above, size),
        normal(key_heads, num, size),
        normal(key_heads, num, size),
        normal(heads, num - above, size),
        normal(heads) if sinks else None,
    )


def played(backend: str, plan: TreePlan, inputs: Inputs, **options: Any) -> list[Tensor]:
    """Return out, dq, dk, dv and, with sinks, dsinks."""
    leaves = [t.clone().requires_grad_() for t in (inputs.q, inputs.k, inputs.v)]
    if inputs.sinks is not None:
        leaves.append(inputs.sinks.clone().requires_grad_())
        options["sinks"] = leaves[-1]
    out = tree_attention(*leaves[:3], plan, backend=backend, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, inputs.grad)]


def error(found: Tensor, wanted: Tensor, least: float = 1e-2) -> float:
    """Return the error as a share of the wanted norm, or of `least` where less is wanted."""
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=least))


def check(backend: str, plan: TreePlan, inputs: Inputs, **options: Any) -> None:
    wanted = played("reference", plan, inputs, **options)
    # Gradients may cancel to nothing: a token that sees itself alone has no dq.
    least = 0.5 * float(inputs.grad.norm())
    for dtype, allowed in MAX_ERROR.items():
        found = played(backend, plan, inputs.to(dtype), **options)
        for name, x, y in zip(("out", "dq", "dk", "dv", "dsinks"), found, wanted, strict=False):
            assert x.isfinite().all(), name
            assert error(x, y, least) <= allowed, (name, dtype, error(x, y, least))


@given(end=ends(), heads=st.sampled_from([(1, 1), (4, 2), (4, 1), (3, 3)]), seed=st.integers(0, 9))
def test_random_forests(end: list[int], heads: tuple[int, int], seed: int) -> None:
    for above in (0, seed % len(end)):
        inputs = draw(len(end), heads=heads[0], key_heads=heads[1], seed=seed, above=above)
        for backend in EXACT:
            check(backend, TreePlan.build(end, num_above=above), inputs)


@given(end=ends(), window=st.none() | st.integers(1, 9), share=st.floats(0, 0.99))
def test_tokens_above_are_keys_for_which_nothing_is_asked(
    end: list[int], window: int | None, share: float
) -> None:
    """As if all queries were asked and the gradient of the first ones were zero."""
    above = int(share * len(end))
    inputs = draw(len(end))
    grad = inputs.grad.clone()
    grad[:, :above] = 0
    whole = dataclasses.replace(inputs, grad=grad)
    wanted = played("reference", TreePlan.build(end, window=window), whole, softcap=3.0)
    some = dataclasses.replace(inputs, q=inputs.q[:, above:], grad=inputs.grad[:, above:])
    plan = TreePlan.build(end, window=window, num_above=above)
    out, dq, dk, dv = played("reference", plan, some, softcap=3.0)
    wanted[:2] = [t[:, above:] for t in wanted[:2]]
    for found, expected in zip((out, dq, dk, dv), wanted, strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert plan.num_pairs == int(plan.mask_QN().sum())


def test_awkward_forests_and_sinks(subtests: pytest.Subtests) -> None:
    for name, end in AWKWARD.items():
        with subtests.test(name):
            plan = TreePlan.build(end)
            for backend in EXACT:
                check(backend, plan, draw(len(end)))
            check("cascade", plan, draw(len(end), sinks=True))


def test_a_fork_at_every_packed_index() -> None:
    inputs = draw(140, heads=2, key_heads=1, size=8)
    for fork in some_of(range(2, 132), 20):
        plan = TreePlan.build(fork_at(fork, 140))
        for backend in EXACT:
            check(backend, plan, inputs)


def test_head_sizes() -> None:
    plan = TreePlan.build(random_end(random.Random(1), 33))
    for size in (1, 64, 80, 96, 128, 256):
        for backend in EXACT:
            check(backend, plan, draw(33, size=size))


def test_values_may_be_narrower_or_wider_than_keys() -> None:
    """As in latent attention: what comes out is as wide as values, and scaled by the keys' size."""
    plan = TreePlan.build([7, 4, 4, 4, 7, 7, 7])
    rng = torch.Generator().manual_seed(0)
    for size, width in ((16, 8), (8, 16), (24, 16)):
        shapes = [(4, 7, size), (2, 7, size), (2, 7, width)]
        q, k, v = (torch.randn(*shape, generator=rng).requires_grad_() for shape in shapes)
        grad = torch.randn(4, 7, width, generator=rng)
        scores = q @ k.repeat_interleave(2, 0).mT * size**-0.5
        scores = scores.masked_fill(~plan.mask_QN(), float("-inf"))
        plain = scores.softmax(-1) @ v.repeat_interleave(2, 0)
        wanted = [plain, *torch.autograd.grad(plain, (q, k, v), grad)]
        for backend in EXACT:
            out = tree_attention(q, k, v, plan, backend=backend)
            found = [out, *torch.autograd.grad(out, (q, k, v), grad)]
            for one, other in zip(found, wanted, strict=True):
                assert one.shape == other.shape
                assert float((one - other).detach().abs().max()) <= 2e-6, (backend, size, width)


def test_options_of_the_reference_by_hand() -> None:
    plan = TreePlan.build([2, 2])
    q, k, v = (torch.tensor([[[a], [b]]], dtype=torch.float64) for a, b in ((1, 2), (3, 4), (5, 6)))
    plain, lse = reference_attention(q, k, v, plan, scale=0.5)
    scores = torch.tensor([3.0, 4.0], dtype=torch.float64)  # 0.5 * 2 * (3, 4)
    assert plain[0, 0, 0] == 5
    assert plain[0, 1, 0] == pytest.approx(
        float(scores.softmax(0) @ torch.tensor([5.0, 6.0]).double())
    )
    assert lse[0, 1] == pytest.approx(float(scores.logsumexp(0)))
    sink = torch.tensor([1.0], dtype=torch.float64)
    out = tree_attention(q, k, v, plan, scale=0.5, sinks=sink, backend="reference")
    weights = torch.cat([scores, sink]).softmax(0)[:2]
    assert out[0, 1, 0] == pytest.approx(float(weights @ torch.tensor([5.0, 6.0]).double()))
    capped = 2 * torch.tanh(scores / 2)
    out = tree_attention(q, k, v, plan, scale=0.5, softcap=2.0, backend="reference")
    assert out[0, 1, 0] == pytest.approx(
        float(capped.softmax(0) @ torch.tensor([5.0, 6.0]).double())
    )


def test_windows() -> None:
    for window in (1, 2, 7, 100):
        plan = TreePlan.build(random_end(random.Random(window), 50), window=window)
        check("sdpa", plan, draw(50))


def test_half_precision_is_as_good_as_eager() -> None:
    plan = TreePlan.build(random_end(random.Random(3), 96, chain=0.95))
    inputs = draw(96, heads=4, key_heads=2, size=64)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = inputs.to(dtype).to(torch.float64)
        wanted = played("reference", plan, rounded)
        eager = played("sdpa", plan, inputs.to(dtype))
        found = played("cascade", plan, inputs.to(dtype))
        for x, y, base in zip(found, wanted, eager, strict=True):
            assert error(x, y) <= 2 * error(base, y)


def test_nothing_leaks_and_ancestors_count() -> None:
    end = [9, 5, 4, 4, 5, 9, 7, 9, 9, 11, 11]  # two trees; 5 has children 6 and 7
    plan, inputs = TreePlan.build(end), draw(11)
    for backend in ("reference", *EXACT):
        before = tree_attention(inputs.q, inputs.k, inputs.v, plan, backend=backend)
        for changed in range(11):
            k, v = inputs.k.clone(), inputs.v.clone()
            k[:, changed] += 1
            v[:, changed] -= 1
            after = tree_attention(inputs.q, k, v, plan, backend=backend)
            for i in range(11):
                is_seen = changed <= i < end[changed]
                assert torch.equal(after[:, i], before[:, i]) != is_seen, (backend, changed, i)


def test_two_runs_are_the_same_bits() -> None:
    plan, inputs = TreePlan.build(random_end(random.Random(5), 150)), draw(150).to(torch.float32)
    for backend in EXACT:
        first, second = (played(backend, plan, inputs) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), backend


def test_large_scores_stay_finite() -> None:
    """A token may be nearly certain of a key that others of its batch never see."""
    for dtype, size in ((torch.float32, 40), (torch.float16, 8)):
        for seed, end in enumerate(([3, 3, 3, 5, 5], random_end(random.Random(3), 60))):
            drawn, plan = draw(len(end), seed=seed), TreePlan.build(end)
            inputs = dataclasses.replace(drawn, q=size * drawn.q, k=size * drawn.k).to(dtype)
            wanted = played("reference", plan, inputs.to(torch.float64))
            for backend in EXACT:
                found = played(backend, plan, inputs)
                for name, x, y in zip(("out", "dq", "dk", "dv"), found, wanted, strict=True):
                    assert x.isfinite().all(), (backend, name, end)
                    assert error(x, y, 1.0) < 0.02, (backend, name, end)


def test_inputs_that_are_views_are_fine() -> None:
    plan = TreePlan.build(random_end(random.Random(7), 20))
    inputs = draw(20)
    wanted = tree_attention(inputs.q, inputs.k, inputs.v, plan, backend="reference")
    views = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (inputs.q, inputs.k, inputs.v)]
    with_gaps = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in views]
    assert all(t.stride(-1) > 1 for t in with_gaps)
    grad = inputs.grad.transpose(1, 2).contiguous().transpose(1, 2)
    for backend in EXACT:
        assert error(tree_attention(*views, plan, backend=backend), wanted) < 1e-13
        leaves = [t.requires_grad_() for t in with_gaps]
        out = tree_attention(*leaves, plan, backend=backend)
        assert error(out.detach(), wanted) < 1e-13
        for found, expected in zip(
            torch.autograd.grad(out, leaves, grad),
            played("reference", plan, inputs)[1:],
            strict=True,
        ):
            assert error(found, expected) < 1e-13


Q = torch.zeros(4, 3, 8)
KV = torch.zeros(2, 3, 8)
PLAN = TreePlan.build([3, 2, 3])
WINDOWED = TreePlan.build([3, 2, 3], window=1)
ELSEWHERE = TreePlan.build([3, 2, 3], device="meta")
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((Q, KV, KV, None), {}, "plan is a TreePlan, got NoneType"),
    ((Q[0], KV, KV, PLAN), {}, r"q is \[heads, N, D\], got shape \(3, 8\)"),
    ((Q, KV.double(), KV, PLAN), {}, "k has torch.float64"),
    ((Q.int(), KV.int(), KV.int(), PLAN), {}, "q has torch.int32"),
    ((Q[:, :2], KV[:, :2], KV[:, :2], PLAN), {}, "q has 2 tokens, the plan 3"),
    ((Q, KV, KV[:, :2], PLAN), {}, r"k is \[key heads, 3, 8\] and v as many"),
    ((Q, KV[..., :4], KV[..., :4], PLAN), {}, r"k is \[key heads, 3, 8\] and v as many"),
    ((Q[:3], KV, KV, PLAN), {}, "q has 3 heads, which is no multiple of k's 2"),
    ((Q, KV[:0], KV[:0], PLAN), {}, "no multiple of k's 0"),
    ((Q, KV, KV, PLAN), {"softcap": 0.0}, "softcap is above 0 or None, got 0.0"),
    ((Q, KV, KV, PLAN), {"scale": float("nan")}, "scale is above 0 or None, got nan"),
    ((Q, KV, KV, PLAN), {"sinks": torch.zeros(2)}, r"sinks is \[4\] on cpu, got \(2,\)"),
    ((Q, KV, KV, PLAN), {"backend": "flash"}, "unknown backend 'flash'; allowed: auto"),
    ((Q, KV, KV, PLAN), {"backend": "sdpa", "softcap": 3.0}, "'sdpa' does not know softcap; these"),
    ((Q, KV, KV, PLAN), {"backend": "sdpa", "sinks": Q[:, 0, 0]}, "'sdpa' does not know sinks"),
    ((Q, KV, KV, WINDOWED), {"backend": "cascade"}, "does not know a window"),
    ((Q, KV, KV, ELSEWHERE), {}, "q is on cpu, the plan on meta"),
]


def test_what_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    for arguments, options, words in REFUSED:
        with subtests.test(words), pytest.raises(ValueError, match=words):
            tree_attention(*arguments, **options)


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ANSWERS = [1024] * 512 + [512 + 64 * (i + 1) for i in range(8) for _ in range(64)]
PLANS = {
    "answers": TreePlan.build(ANSWERS),
    "windowed": TreePlan.build(ANSWERS, window=100),
    "rows": TreePlan.build([64 * (i + 1) for i in range(8) for _ in range(64)]),
    "leaves": TreePlan.build(star(200)),
    "caterpillar": TreePlan.build(caterpillar(400)),
    "too large for a mask": TreePlan.build(star(20_000)),
}
CHOICES: list[tuple[str, dict[str, Any], str]] = [
    ("answers", {}, "cascade"),
    ("answers", {"has_softcap": True}, "reference"),
    ("leaves", {}, "sdpa"),
    ("caterpillar", {}, "sdpa"),
    ("caterpillar", {"has_sinks": True}, "cascade"),
    ("windowed", {}, "sdpa"),
    ("windowed", {"has_sinks": True}, "reference"),
    ("too large for a mask", {"dtype": torch.float32, "heads": (1, 64)}, "cascade"),
    ("answers", {"device": CUDA}, "triton"),
    ("answers", {"device": CUDA, "dtype": torch.float32}, "triton"),
    ("answers", {"device": CUDA, "dtype": torch.float64}, "reference"),
    ("answers", {"device": CUDA, "has_softcap": True, "has_sinks": True}, "triton"),
    ("answers", {"device": CUDA, "heads": (8, 160)}, "cascade"),
    ("answers", {"device": CUDA, "heads": (8, 160), "has_softcap": True}, "reference"),
    ("answers", {"device": CUDA, "heads": (8, 320)}, "reference"),
    ("windowed", {"device": CUDA}, "triton"),
    ("rows", {"device": CUDA, "heads": (8, 512)}, "triton"),
    ("rows", {"device": CUDA}, "cascade"),
    ("rows", {"device": CUDA, "has_softcap": True}, "triton"),
    ("rows", {"device": CUDA, "dtype": torch.float32}, "triton"),
]


def test_the_choice_of_auto_goes_by_device_options_and_cost() -> None:
    pytest.importorskip("triton", reason="CUDA's choice is triton")
    usual: dict[str, Any] = {"device": CPU, "dtype": torch.bfloat16, "heads": (8, 64)}
    found = [
        (name, options, choose.decide(PLANS[name], **{**usual, **options}).name)
        for name, options, _ in CHOICES
    ]
    assert found == CHOICES
    huge = choose.decide(PLANS["too large for a mask"], **usual)
    assert huge == ("cascade", "a mask of more than 8192 tokens is too large", False)


def test_a_forest_is_branched_if_a_token_has_two_children() -> None:
    ends = ([4] * 4, [2, 2, 3], [1, 2, 3], [3, 2, 3])
    assert [choose.is_branched(TreePlan.build(end)) for end in ends] == [False, False, False, True]


def test_it_says_once_what_it_takes_and_warns_of_what_is_dense(
    caplog: pytest.LogCaptureFixture,
) -> None:
    choose._tell.cache_clear()
    windowed = TreePlan.build(ANSWERS, window=4)
    q, k = torch.randn(4, 1024, 16), torch.randn(2, 1024, 16)
    with caplog.at_level("INFO"):
        for _ in range(2):
            tree_attention(q, k, k, PLANS["answers"])
            tree_attention(q, k, k, windowed)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["INFO", "WARNING"]
    assert "takes 'cascade'" in told[0][1] and "takes 'sdpa' (dense" in told[1][1]

"""Log-probs and entropies of edges, and their gradients, against the whole softmax in float64."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from nightly import IS_NIGHT
from torch import Tensor

from katgym_kernels import edge_logprobs
from katgym_kernels.edge_logprobs import chunked

pytest.importorskip("triton", reason="backend 'triton' needs triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ["torch", "triton"]
EXACT = {torch.float64: 1e-12, torch.float32: 5e-6}


def whole(
    hidden_UD: Tensor,
    weight_VD: Tensor,
    target_U: Tensor,
    temperature: float = 1.0,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    logits_UV = hidden_UD @ weight_VD.T
    if softcap is not None:
        logits_UV = softcap * torch.tanh(logits_UV / softcap)
    logp_UV = (logits_UV / temperature).log_softmax(1)
    return logp_UV.gather(1, target_U[:, None])[:, 0], -(logp_UV.exp() * logp_UV).sum(1)


def draw(num_edges: int, vocabulary: int, size: int, seed: int = 0) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_edges, size, generator=rng, dtype=torch.float64)
    weight = torch.randn(vocabulary, size, generator=rng, dtype=torch.float64)
    target = torch.randint(vocabulary, (num_edges,), generator=rng)
    return hidden.to(DEVICE), weight.to(DEVICE), target.to(DEVICE)


def played(compute: Any, hidden: Tensor, weight: Tensor, *more: Any) -> list[Tensor]:
    """Return log-probs, entropies and the gradients of a sum with odd weights."""
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    logprobs, entropy = compute(*leaves, *more)
    odd = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype, device=DEVICE)
    total = (logprobs * odd).sum() + (entropy * odd.flip(0)).sum() * 0.3
    return [logprobs.detach(), entropy.detach(), *torch.autograd.grad(total, leaves)]


def edge_logprobs_of(backend: str, **options: Any) -> Any:
    """Return the function under test with a backend and other options."""
    return functools.partial(edge_logprobs, backend=backend, **options)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


Case = tuple[int, tuple[int, int, int], tuple[float, float | None]]
"""Logits a block: many, some, one; edges, tokens and size; temperature and softcap."""
EVERY: list[Case] = list(
    itertools.product(
        [1 << 25, 50, 1],
        [(1, 1, 1), (1, 5, 3), (9, 37, 8), (8, 64, 4)],
        [(1.0, None), (0.6, None), (0.6, 3.0)],
    )
)
BY_DAY: list[Case] = [
    (1 << 25, (1, 1, 1), (1.0, None)),
    (1 << 25, (9, 37, 8), (0.6, None)),
    (1 << 25, (8, 64, 4), (0.6, 3.0)),
    (50, (9, 37, 8), (1.0, None)),
    (50, (9, 37, 8), (0.6, 3.0)),
    (1, (1, 5, 3), (0.6, None)),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_and_gradients_are_those_of_the_whole_softmax(
    backend: str, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block, shape, (temperature, softcap) in EVERY if IS_NIGHT else BY_DAY:
        with subtests.test(block=block, shape=shape, temperature=temperature, softcap=softcap):
            monkeypatch.setattr(chunked, "_MAX_BLOCK", {"cpu": block, "cuda": block})
            monkeypatch.setattr(chunked, "_MAX_EDGES", 7 if block < 1 << 25 else 4096)
            hidden, weight, target = draw(*shape)
            compute = edge_logprobs_of(backend, temperature=temperature, softcap=softcap)
            wanted = played(whole, hidden, weight, target, temperature, softcap)
            for dtype in EXACT if backend == "torch" else [torch.float32]:
                found = played(compute, hidden.to(dtype), weight.to(dtype), target)
                for x, y in zip(found, wanted, strict=True):
                    assert x.dtype is dtype
                    assert float((x.double() - y).norm()) <= EXACT[dtype] * max(1, float(y.norm()))


def test_gradcheck_also_where_a_token_is_nearly_certain() -> None:
    hidden, weight, target = draw(5, 9, 4)
    hidden[0] = 12 * weight[target[0]] / weight[target[0]].norm() ** 2  # p above 0.99
    logprobs, _ = edge_logprobs(hidden, weight, target)
    assert logprobs[0] > -0.1
    leaves = (hidden.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(lambda h, w: edge_logprobs(h, w, target), leaves)


def test_confident_tokens_keep_their_gradient(subtests: pytest.Subtests) -> None:
    """Logits are (z, 0), exact in every dtype, so that 1 - p is all the gradient there is."""
    dtypes = {torch.float32: 1e-5, torch.bfloat16: 6e-3}
    for p, dtype, backend in itertools.product([0.9, 0.99, 0.999], dtypes, BACKENDS):
        with subtests.test(p=p, dtype=dtype, backend=backend):
            z = torch.tensor(p / (1 - p), dtype=torch.float64, device=DEVICE).log().to(dtype)
            hidden = torch.ones(1, 1, dtype=dtype, device=DEVICE, requires_grad=True)
            weight = torch.stack([z, torch.zeros_like(z)])[:, None].requires_grad_()
            target = torch.tensor([0], device=DEVICE)
            logprobs, _ = edge_logprobs(hidden, weight, target, backend=backend)
            logprobs.sum().backward()
            rest = float(torch.sigmoid(-z.double()))
            assert weight.grad is not None and hidden.grad is not None
            found = [*weight.grad[:, 0].tolist(), hidden.grad.item()]
            assert found == pytest.approx([rest, -rest, rest * float(z)], rel=dtypes[dtype])


def test_half_precision_is_as_good_as_eager() -> None:
    hidden, weight, target = draw(40, 300, 64)
    for dtype in (torch.bfloat16, torch.float16):
        h, w = (hidden / 8).to(dtype), weight.to(dtype)
        wanted = played(whole, h.double(), w.double(), target)
        eager = played(whole, h, w, target)
        for backend in BACKENDS:
            found = played(edge_logprobs_of(backend), h, w, target)
            for x, y, base in zip(found, wanted, eager, strict=True):
                assert error(x, y) <= 2 * error(base, y)
            assert error(found[0], wanted[0]) < 1e-5  # logits are not rounded to half precision


def test_a_tied_weight_gets_both_gradients() -> None:
    _, weight, target = draw(6, 11, 4)
    ids = torch.randint(11, (6,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    tied = [weight.clone().requires_grad_() for _ in range(2)]
    edge_logprobs(tied[0][ids], tied[0], target)[0].sum().backward()
    whole(tied[1][ids], tied[1], target)[0].sum().backward()
    assert tied[0].grad is not None and tied[1].grad is not None
    assert error(tied[0].grad, tied[1].grad) < 1e-12


def test_frozen_sides_and_no_edges() -> None:
    hidden, weight, target = draw(6, 11, 4)
    leaf = hidden.clone().requires_grad_()
    edge_logprobs(leaf, weight, target)[0].sum().backward()
    assert leaf.grad is not None and leaf.grad.abs().sum() > 0
    leaf = weight.clone().requires_grad_()
    edge_logprobs(hidden, leaf, target)[1].sum().backward()
    assert leaf.grad is not None and leaf.grad.abs().sum() > 0
    none = hidden[:0].clone().requires_grad_()
    logprobs, entropy = edge_logprobs(none, weight, target[:0])
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.shape == entropy.shape == (0,)


def test_two_runs_are_the_same_bits() -> None:
    hidden, weight, target = draw(20, 90, 16)
    for backend in BACKENDS:
        one, other = (
            played(edge_logprobs_of(backend), hidden.float(), weight.float(), target)
            for _ in range(2)
        )
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True)), backend


def test_huge_logits_are_finite() -> None:
    weight = torch.tensor([[1e4], [-1e4], [0.0]], device=DEVICE)
    target = torch.tensor([0, 0], device=DEVICE)
    for backend in BACKENDS:
        leaf = torch.tensor([[3.0], [-3.0]], device=DEVICE, requires_grad=True)
        logprobs, entropy = edge_logprobs(leaf, weight, target, backend=backend)
        assert (logprobs.tolist(), entropy.tolist()) == ([0.0, -6e4], [0.0, 0.0])
        logprobs.sum().backward()
        assert leaf.grad is not None and leaf.grad.isfinite().all()


H, W, T = torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(3, dtype=torch.int64)
REFUSED: list[tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], str]] = [
    ((H[0], W, T), {}, r"hidden has 2 axes, got shape \(4,\)"),
    ((H, W, T[:, None]), {}, r"target has 1 axes, got shape \(3, 1\)"),
    ((H, W.double(), T), {}, "hidden and weight share one of"),
    ((H.int(), W.int(), T), {}, "hidden and weight share one of"),
    ((H, W, T.int()), {}, "target holds int64, got torch.int32"),
    ((H, W[:, :2], T), {}, "hidden has 4 columns, weight has 2"),
    ((H[:2], W, T), {}, "hidden has 2 edges, target has 3"),
    ((H, W[:0], T), {}, "the vocabulary is empty"),
    ((H, W, T + 5), {}, "target 5 is no token; allowed is 0 to 4"),
    ((H, W, T - 1), {}, "target -1 is no token; allowed is 0 to 4"),
    ((H, W.to("meta"), T), {}, "weight is on meta, hidden on cpu"),
    ((H, W, T), {"temperature": 0.0}, "temperature is above 0, got 0.0"),
    ((H, W, T), {"softcap": -1.0}, r"softcap is above 0 or None, got -1\.0"),
    ((H, W, T), {"backend": "cce"}, "unknown backend 'cce'; allowed: auto, torch, triton"),
    ((H.double(), W.double(), T), {"backend": "triton"}, "computes in float32, got float64"),
]


def test_what_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    for arguments, options, words in REFUSED:
        with subtests.test(words), pytest.raises(ValueError, match=words):
            edge_logprobs(*arguments, **options)

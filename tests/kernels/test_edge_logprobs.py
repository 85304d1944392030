"""Log-probs and entropies of edges, and their gradients, against the whole softmax in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from katgym_kernels import edge_logprobs
from katgym_kernels.edge_logprobs import chunked

pytest.importorskip("triton", reason="backend 'triton' needs triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = {torch.float64: 1e-12, torch.float32: 5e-6}


def whole(
    hidden_UD: Tensor, weight_VD: Tensor, target_U: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    logp_UV = (hidden_UD @ weight_VD.T / temperature).log_softmax(1)
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


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1 << 25, 50, pytest.param(1, marks=pytest.mark.slow)])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let blocks be large, small, and of one logit."""
    monkeypatch.setattr(chunked, "_MAX_BLOCK", {"cpu": request.param, "cuda": request.param})
    monkeypatch.setattr(chunked, "_MAX_EDGES", 7 if request.param < 1 << 25 else 4096)
    return int(request.param)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (9, 37, 8), (8, 64, 4)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_results_and_gradients_are_those_of_the_whole_softmax(
    block: int, shape: tuple[int, int, int], temperature: float, backend: str
) -> None:
    hidden, weight, target = draw(*shape)
    wanted = played(whole, hidden, weight, target, temperature)

    def found_in(dtype: torch.dtype) -> list[Tensor]:
        return played(
            lambda h, w: edge_logprobs(h, w, target, temperature=temperature, backend=backend),
            hidden.to(dtype),
            weight.to(dtype),
        )

    for dtype in (torch.float64, torch.float32) if backend == "torch" else (torch.float32,):
        allowed = EXACT[dtype]
        for x, y in zip(found_in(dtype), wanted, strict=True):
            assert x.dtype is dtype
            assert float((x.double() - y).norm()) <= allowed * max(1.0, float(y.norm()))


def test_softcapped_logits(block: int, backend: str) -> None:
    hidden, weight, target = draw(11, 37, 8)

    def capped(h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        logp_UV = (3.0 * torch.tanh(h @ w.T / 3.0) / 0.6).log_softmax(1)
        return logp_UV.gather(1, target[:, None])[:, 0], -(logp_UV.exp() * logp_UV).sum(1)

    def found_in(dtype: torch.dtype) -> list[Tensor]:
        options: dict[str, Any] = {"temperature": 0.6, "softcap": 3.0, "backend": backend}
        inputs = (hidden.to(dtype), weight.to(dtype))
        return played(lambda h, w: edge_logprobs(h, w, target, **options), *inputs)

    wanted = played(capped, hidden, weight)
    for dtype in (torch.float64, torch.float32) if backend == "torch" else (torch.float32,):
        for x, y in zip(found_in(dtype), wanted, strict=True):
            assert float((x.double() - y).norm()) <= EXACT[dtype] * max(1.0, float(y.norm()))


def test_gradcheck_also_where_a_token_is_nearly_certain() -> None:
    hidden, weight, target = draw(5, 9, 4)
    hidden[0] = 12 * weight[target[0]] / weight[target[0]].norm() ** 2  # p above 0.99
    logprobs, _ = edge_logprobs(hidden, weight, target)
    assert logprobs[0] > -0.1
    leaves = (hidden.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(lambda h, w: edge_logprobs(h, w, target), leaves)


@pytest.mark.parametrize("p", [0.9, 0.99, 0.999])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-5), (torch.bfloat16, 6e-3)])
def test_confident_tokens_keep_their_gradient(
    p: float, dtype: torch.dtype, allowed: float, backend: str
) -> None:
    """Logits are (z, 0), exact in every dtype, so that 1 - p is all the gradient there is."""
    z = torch.tensor(p / (1 - p), dtype=torch.float64, device=DEVICE).log().to(dtype)
    hidden = torch.ones(1, 1, dtype=dtype, device=DEVICE, requires_grad=True)
    weight = torch.stack([z, torch.zeros_like(z)])[:, None].requires_grad_()
    logprobs, _ = edge_logprobs(hidden, weight, torch.tensor([0], device=DEVICE), backend=backend)
    logprobs.sum().backward()
    wanted = torch.sigmoid(-z.double())
    assert weight.grad is not None and hidden.grad is not None
    assert float((weight.grad[0, 0].double() - wanted).abs() / wanted) <= allowed
    assert float((weight.grad[1, 0].double() + wanted).abs() / wanted) <= allowed
    assert float((hidden.grad[0, 0].double() - wanted * z).abs() / (wanted * z)) <= allowed


def test_half_precision_is_as_good_as_eager(backend: str) -> None:
    hidden, weight, target = draw(40, 300, 64)
    hidden, weight = hidden / 8, weight
    for dtype in (torch.bfloat16, torch.float16):
        h, w = hidden.to(dtype), weight.to(dtype)
        wanted = played(whole, h.double(), w.double(), target)
        eager = played(whole, h, w, target)
        found = played(lambda h, w: edge_logprobs(h, w, target, backend=backend), h, w)
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


def test_two_runs_are_the_same_bits(backend: str) -> None:
    hidden, weight, target = (t.float() if t.is_floating_point() else t for t in draw(20, 90, 16))
    one, other = (
        played(lambda h, w: edge_logprobs(h, w, target, backend=backend), hidden, weight)
        for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_huge_logits_are_finite(backend: str) -> None:
    weight = torch.tensor([[1e4], [-1e4], [0.0]], device=DEVICE)
    leaf = torch.tensor([[3.0], [-3.0]], device=DEVICE, requires_grad=True)
    target = torch.tensor([0, 0], device=DEVICE)
    logprobs, entropy = edge_logprobs(leaf, weight, target, backend=backend)
    assert logprobs.tolist() == [0.0, -6e4]
    assert entropy.tolist() == [0.0, 0.0]
    logprobs.sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()


H, W, T = torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
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
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        edge_logprobs(*arguments, **options)

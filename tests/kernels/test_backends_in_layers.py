"""Every backend within a layer, as models run it: plain, checkpointed, compiled.

The plan is told the device with an index and without. Gradients are the plain layer's bits, and the
reference's values. Whoever has a GPU runs all of it there.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from forests import random_end
from nightly import IS_NIGHT, some_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention.fa4 import fa4_problem
from katgym_kernels.attention.tree_attention import BACKENDS
from katgym_kernels.devices import device_of_tensors

NUM, HEADS, KEY_HEADS, SIZE = 40, 2, 1, 16
IS_CUDA = torch.cuda.is_available()
DEVICES = ["cuda", "cuda:0"] if IS_CUDA else ["cpu", "cpu:0"]
DTYPE = torch.float16 if IS_CUDA else torch.float32
BOUND = 2e-2 if IS_CUDA else 2e-6
ABSENT = {
    "fa4": fa4_problem(torch.device(DEVICES[0]), DTYPE, 64),
    "triton": None if importlib.util.find_spec("triton") else "needs triton",
    "flex": None if IS_CUDA else "has no backward on the CPU",
}
"""Why a backend does not run here, None where it does."""
HERE = [name for name in BACKENDS if ABSENT.get(name) is None]
COMPILER = "inductor" if IS_CUDA else "aot_eager"
"""What makes code of traced layers; on a CPU that takes minutes for all of them."""


class Layer(nn.Module):
    """Attention between two matrices, which takes a view of what it returns."""

    def __init__(self, plan: TreePlan, backend: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Linear(32, (HEADS + 2 * KEY_HEADS) * SIZE)
        self.out = nn.Linear(HEADS * SIZE, 32)
        self.sinks = nn.Parameter(torch.linspace(-1, 1, HEADS))
        self.plan, self.backend = plan, backend

    def forward(self, x_ND: Tensor) -> Tensor:
        rows = F.silu(self.mix(x_ND)).view(NUM, -1, SIZE).transpose(0, 1)
        q_HND, k_KND, v_KND = rows.split([HEADS, KEY_HEADS, KEY_HEADS])
        out_HND = self.attend(q_HND, k_KND, v_KND)
        return x_ND + self.out(F.silu(out_HND.transpose(0, 1).reshape(NUM, -1)))

    @torch.compiler.disable
    def attend(self, q_HND: Tensor, k_KND: Tensor, v_KND: Tensor) -> Tensor:
        sinks = self.sinks if BACKENDS[self.backend].has_sinks else None
        return tree_attention(q_HND, k_KND, v_KND, self.plan, sinks=sinks, backend=self.backend)


def compiled(layer: Layer) -> Callable[[Tensor], Tensor]:
    torch.compiler.reset()
    found: Callable[[Tensor], Tensor] = torch.compile(layer, backend=COMPILER)
    return found


Run = Callable[[Layer, Tensor], Tensor]
RUNS: dict[str, Run] = {
    "plain": lambda layer, x: layer(x),
    "checkpointed": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "compiled": lambda layer, x: compiled(layer)(x),
    "compiled and checkpointed": lambda layer, x: checkpoint(
        compiled(layer), x, use_reentrant=False
    ),
}


def gradients(backend: str, device: str, run: Run, *, window: int | None = None) -> list[Tensor]:
    """Return a layer's output, and the gradients of its input and parameters."""
    end = random_end(random.Random(2), NUM, chain=0.8)
    plan = TreePlan.build(end, window=window, device=device)
    layer = Layer(plan, backend).to(device, DTYPE)
    x = torch.randn(NUM, 32, generator=torch.Generator().manual_seed(1))
    x = x.to(device, DTYPE).requires_grad_()
    out = run(layer, x)
    leaves = [x, *layer.parameters()]
    grad = torch.linspace(-1, 1, out.numel(), device=device).to(DTYPE).view_as(out)
    found = torch.autograd.grad(out, leaves, grad, allow_unused=True)
    return [out.detach(), *(g for g in found if g is not None)]


# Dynamo looks at `.grad` of what a disabled function returns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", HERE)
def test_every_run_of_a_layer_gives_the_same_gradients(backend: str) -> None:
    chosen, apart = BACKENDS[backend], []
    for window in (None, 9) if IS_NIGHT and chosen.has_window else (None,):
        plain = gradients(backend, DEVICES[0], RUNS["plain"], window=window)
        assert len(plain) == 6 + chosen.has_sinks
        cases = [*itertools.product(DEVICES, RUNS)][1:]
        for device, name in some_of(cases, 3):
            found = gradients(backend, device, RUNS[name], window=window)
            same = all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))
            apart += [] if same else [(device, name, window)]
        if chosen.has_sinks:
            wanted = gradients("reference", DEVICES[0], RUNS["plain"], window=window)
            for found_one, other in zip(plain, wanted, strict=True):
                error = float((found_one - other).float().norm() / other.float().norm())
                assert error <= BOUND, (window, error)
    assert apart == []


def test_a_backend_that_is_left_out_here_says_why() -> None:
    for backend in BACKENDS.keys() - HERE:
        with pytest.raises(ValueError, match=f"backend '{backend}'"):
            gradients(backend, DEVICES[0], RUNS["plain"])


def test_outputs_and_gradients_lie_token_by_token() -> None:
    """As the models lay out what they give, and what they take on a view of."""
    plan = TreePlan.build(random_end(random.Random(3), NUM), num_above=3, device=DEVICES[0])
    shapes = [(NUM - 3, HEADS, SIZE), (NUM, KEY_HEADS, SIZE), (NUM, KEY_HEADS, SIZE)]
    leaves = [torch.randn(*shape, device=DEVICES[0], dtype=DTYPE) for shape in shapes]
    q, k, v = (t.requires_grad_().transpose(0, 1) for t in leaves)
    for backend in {"triton", "cascade"} & set(HERE):
        out = tree_attention(q, k, v, plan, backend=backend)
        out.transpose(0, 1).view(NUM - 3, HEADS * SIZE)  # raises where it would be a copy
        for gradient in torch.autograd.grad(out, (q, k, v), out.detach()):
            assert gradient.transpose(0, 1).is_contiguous(), backend


def test_a_device_has_one_name_whoever_stores_it() -> None:
    plan = TreePlan.build([1])
    assert device_of_tensors("cpu:0") == torch.device("cpu") == device_of_tensors("cpu")
    assert device_of_tensors("meta:0") == torch.empty(0, device="meta").device
    with FakeTensorMode():  # tensors that lie on a GPU which is not there
        on_gpu = torch.empty(2, device="cuda").device
        assert device_of_tensors("cuda") == device_of_tensors(torch.device("cuda")) == on_gpu
        assert on_gpu == torch.device("cuda", on_gpu.index) != torch.device("cuda")
        assert dataclasses.replace(plan, device=torch.device("cuda")).device == on_gpu
        assert device_of_tensors("cuda:1") == torch.device("cuda:1")

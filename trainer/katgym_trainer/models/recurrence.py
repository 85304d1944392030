"""Recurrent layers on a forest: states go from a token to all its children, with gradients.

What such a layer of transformers does along the tokens, its module's ops do: a causal convolution,
and a scan that takes an initial state and gives a final one. All else is token by token. While a
layer runs on a forest its ops run segment by segment from the roots down, those of one depth
together, each from the state its parent ended with: transformers' own formulas, or the kernels it
takes in their place (flash-linear-attention, mamba-ssm). Not here: how a forest is cut into
segments (`segments.py`), states that go from one part of it to another (`split_backward.py`).

Letters: N tokens, B segments of a group, T tokens of its longest, C channels, K kernel size,
S states of a scan's channel.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.mamba2 import modeling_mamba2
from transformers.utils.import_utils import is_flash_linear_attention_available

from katgym_trainer.models.segments import Layout, SegmentGroup
from katgym_trainer.models.tree_context import Key, TreeContext

Op = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """How a scan's arguments lie."""

    tokens: tuple[str, ...]
    """Those with an entry for each token."""
    dim: int = 1
    """Which dimension of them, and of the output, counts tokens; the first counts sequences."""
    initial: str
    """The one that takes the initial state."""
    final: str
    """The one that asks for the final state."""
    neutral: dict[str, float]
    """Values at a token of padding that leave a state as it is."""
    has_lengths: bool = False
    """Whether flash-linear-attention's kernel takes sequences of unlike length without padding."""


_DELTA = Scan(
    tokens=("query", "key", "value", "g", "beta"),
    initial="initial_state",
    final="output_final_state",
    neutral={"g": 0.0, "beta": 0.0},
    has_lengths=True,
)
SCANS = {
    "torch_chunk_gated_delta_rule": _DELTA,
    "chunk_kimi_delta_attention": _DELTA,
    "mamba2_chunk_scan": Scan(
        tokens=("hidden_states", "dt", "B", "C"),
        initial="initial_states",
        final="return_final_states",
        neutral={"dt": 0.0},
    ),
    "mamba_selective_scan": Scan(
        tokens=("hidden_states", "dt", "B", "C", "z"),
        dim=2,
        initial="initial_state",
        final="return_last_state",
        neutral={"dt": 0.0},
    ),
}
"""By the name that the module of a model has for it."""
CONVOLUTION = "causal_conv1d_fn"
FUSED = ("mamba2_split_conv1d_scan_combined", "mamba_inner_fn")
"""Whole layers in one kernel, for which transformers runs the ops above if they give None."""


class _RunningLayer(threading.local):
    """The recurrent layer that runs in this thread."""

    context: TreeContext | None = None
    layer = ""
    num_ops = 0


_running = _RunningLayer()


def is_recurrent(module: torch.nn.Module) -> bool:
    """Return whether a module is a layer that carries a state along the tokens."""
    convolves = any(isinstance(child, torch.nn.Conv1d) for child in module.children())
    return convolves or type(module).__name__ == "MiniMaxLightningAttention"


def ops_of(layer: torch.nn.Module) -> list[str]:
    """Return the ops of those known here that a layer's own forward names."""
    forward = inspect.unwrap(type(layer).forward)
    known = (CONVOLUTION, *SCANS)
    return [name for name in known if name in forward.__code__.co_names]


def install(layer: torch.nn.Module) -> None:
    """Let a layer's ops run on forests: functions of its module, once for all models of it."""
    for module in (sys.modules[type(layer).__module__], modeling_mamba2):
        for name in (CONVOLUTION, *SCANS, *FUSED):
            op: Op | None = getattr(module, name, None)
            if op is not None and not hasattr(op, "on_sequences"):
                setattr(module, name, _on_forests(name, op))


def begin(context: TreeContext, layer: str) -> None:
    """Have the ops of a layer that runs now in this thread run on a forest."""
    _running.context, _running.layer, _running.num_ops = context, layer, 0


def finish() -> int:
    """End what `begin` began; return how many ops ran."""
    _running.context = None
    return _running.num_ops


@dataclass(frozen=True, slots=True)
class _OpCall:
    """A call of an op, to be made again with some arguments changed."""

    op: Op
    positional: tuple[str, ...]
    """Arguments that were given by position, as kernels have other names for them."""
    values: dict[str, Any]

    def __call__(self, **changes: Any) -> Any:
        values = self.values | changes
        return self.op(*[values.pop(name) for name in self.positional], **values)


def _on_forests(name: str, op: Op) -> Op:
    """Return an op that runs on a forest while a layer does, and as before otherwise."""
    names = tuple(inspect.signature(op).parameters)

    @functools.wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        context = _running.context
        if context is None:
            return op(*args, **kwargs)
        if name in FUSED:
            return None
        positional = names[: len(args)]
        call = _OpCall(op, positional, dict(zip(positional, args, strict=True)) | kwargs)
        key = (_running.layer, _running.num_ops)
        _running.num_ops += 1
        if name == CONVOLUTION:
            return _convolve(call, context, key)
        if name == "mamba_selective_scan":  # kernels of it give no gradient of the final state
            formula = functools.partial(_selective_scan, inspect.unwrap(op))
            call = _OpCall(formula, positional, call.values)
        elif "chunk_size" in names:
            call.values.setdefault("chunk_size", 64)
        return _scan(call, SCANS[name], context, key)

    run.on_sequences = op  # type: ignore[attr-defined]
    return run


def _convolve(call: _OpCall, context: TreeContext, key: Key) -> Tensor:
    """Return a causal convolution over each token's K - 1 ancestors and itself, [1, C, N].

    The packed tokens are convolved as they lie; tokens whose ancestors lie elsewhere again, each
    with its ancestors as a sequence of its own.
    """
    (x_CN,) = call.values["hidden_states"]
    num_before = call.values["weight"].shape[-1] - 1
    halo = context.enter(key)
    if halo is None:
        halo = x_CN.new_zeros(len(x_CN), num_before)
    x_CN = torch.cat([halo.to(x_CN.dtype), x_CN], 1)
    windows_NK, moved = context.plans.windows(num_before + 1)
    out_CN = call(hidden_states=x_CN[None])[0, :, num_before:]
    if len(moved):
        apart = call(hidden_states=x_CN[:, windows_NK[moved]].transpose(0, 1))
        out_CN = out_CN.index_copy(1, moved, apart[..., -1].T)
    leaving = x_CN[:, windows_NK[context.plans.exits][:, 1:]].transpose(0, 1)
    return context.leave(key, out_CN[None], leaving)


def _scan(call: _OpCall, scan: Scan, context: TreeContext, key: Key) -> Any:
    """Return a scan's output over the forest, as the op gives it without a final state."""
    values = call.values
    tokens = {n: values[n][0] for n in scan.tokens if values.get(n) is not None}
    if values.get("dt_softplus") or values.get("delta_softplus"):  # so that the time step is 0
        scan = dataclasses.replace(scan, neutral={"dt": -1e4})
    is_cuda = tokens[scan.tokens[0]].is_cuda
    layout = Layout.PADDED
    if scan.has_lengths and is_cuda and is_flash_linear_attention_available():
        layout = Layout.CONCATENATED
    elif values.get("dt_limit", (0.0,))[0] > 0:  # time goes on in padding
        layout = Layout.EQUAL
    segments = context.plans.segments(layout)
    entering = context.enter(key)
    states = None if entering is None else entering[None]
    outs, leaving = [], []
    for level in segments.levels:
        kept = []
        for group in level:
            initial = None if states is None else states.index_select(0, group.parents_B)
            changes = _of_group(tokens, group, scan, layout)
            if "chunk_size" in values:  # short segments need no long chunks
                longest = 1 << max(4, (group.tokens_BT.shape[1] - 1).bit_length())
                changes["chunk_size"] = min(values["chunk_size"], longest)
            out, final = call(**changes, **{scan.initial: initial, scan.final: True})
            outs.append(out.movedim(0, scan.dim - 1).flatten(scan.dim - 1, scan.dim))
            kept.append(final.index_select(0, group.kept))
        states = torch.cat(kept)
        if len(segments.exits):
            leaving.append(states)
    out = torch.cat(outs, scan.dim - 1).index_select(scan.dim - 1, segments.order_N)[None]
    if leaving:
        out = context.leave(key, out, torch.cat(leaving).index_select(0, segments.exits))
    return (out, None) if scan.has_lengths else out


def _of_group(
    tokens: dict[str, Tensor], group: SegmentGroup, scan: Scan, layout: Layout
) -> dict[str, Tensor]:
    """Return the arguments of a group's tokens, a sequence each or concatenated."""
    dim = scan.dim - 1
    found = {
        name: values.index_select(dim, group.tokens_BT.flatten())
        .unflatten(dim, group.tokens_BT.shape)  # type: ignore[no-untyped-call]  # torch
        .movedim(dim, 0)
        for name, values in tokens.items()
    }
    if layout is Layout.CONCATENATED:
        found["cu_seqlens"] = F.pad(group.lengths_B.cumsum(0), (1, 0))
    elif layout is Layout.PADDED and len(group.lengths_B) > 1:
        for name, value in scan.neutral.items():
            shape = [1] * found[name].ndim
            shape[0], shape[scan.dim] = group.tokens_BT.shape
            found[name] = found[name].masked_fill(group.is_padding_BT.view(shape), value)
    return found


def run_lightning(layer: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Run MiniMax's lightning attention, which is Mamba-2's scan with a fixed decay.

    S_t = exp(-slope) S_(t-1) + k_t^T v_t,  o_t = q_t S_t     (arXiv 2501.08313, equation 10)
    """
    num_heads, size = layer.num_attention_heads, layer.head_dim
    mixed = layer.act_fn(layer.qkv_proj(hidden_states)).unflatten(-1, (num_heads, 3 * size))
    query, key, value = mixed.split(size, -1)
    out = modeling_mamba2.mamba2_chunk_scan(
        value,
        torch.ones_like(value[..., 0]),
        -layer.slope_rate.flatten(),
        key,
        query,
        chunk_size=layer.block_size,
    )
    out = layer.norm(out.to(hidden_states.dtype).flatten(2))
    gated: Tensor = layer.out_proj(F.sigmoid(layer.output_gate(hidden_states)) * out)
    return gated, None


def _selective_scan(
    op: Op,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    initial_state: Tensor | None,
    z: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Run Mamba's scan from a state: the states are linear in it, so what it adds is added.

    h_t = exp(A dt_t) h_(t-1) + dt_t B_t x_t,  y_t = C_t h_t     (arXiv 2312.00752, Algorithm 2)
    """
    out, final = op(hidden_states, dt, A, B, C, **options)
    if initial_state is not None:
        time = dt if options.get("delta_bias") is None else dt + options["delta_bias"][:, None]
        time = F.softplus(time) if options.get("delta_softplus") else time
        decayed = torch.exp(A[:, None] * time.cumsum(-1)[..., None]) * initial_state[:, :, None]
        out = out + torch.einsum("bcts,bst->bct", decayed, C.to(decayed.dtype)).to(out.dtype)
        final = final + decayed[:, :, -1]
    return (out if z is None else out * F.silu(z)), final

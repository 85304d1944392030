"""The visibility of a forest of token paths, made once for all layers and all backends.

    plan = TreePlan.build([5, 3, 3, 5, 5])      # 0 -> (1 -> 2), (3 -> 4)

Tokens are packed in depth-first pre-order; `end[j]` is one past the last descendant of j. Query i
sees key j iff `j <= i < end[j]`: its ancestors and itself. Not here: tiles (`tiles.py`), attention.

Letters: N packed tokens, S segments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from katgym_kernels.devices import device_of_tensors
from katgym_kernels.tiles import Tiles, build_tiles

MAX_TOKENS = 2**31 - 1
T = TypeVar("T")
Makers = dict[Hashable, Callable[["TreePlan"], Any]]
"""What backends make of a plan for themselves, by names of theirs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TreePlan:
    """A forest in packed order; made by `build`, which checks it.

    Example:
        TreePlan.build([3, 2, 3], window=2)
    """

    host_end_N: Tensor
    """int64 on the CPU: one past the last descendant of each token."""
    host_depth_N: Tensor
    """int64 on the CPU: RoPE position, also what a window is measured in."""
    window: int | None
    """Query i sees key j only if `depth[i] - depth[j] < window`; None: no limit."""
    device: torch.device
    """Of the tensors that kernels read, as they tell it: with an index on CUDA."""
    num_above: int = 0
    """The first tokens, which are keys alone: nothing is asked for them."""
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    _makers: Makers = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", device_of_tensors(self.device))

    @classmethod
    def build(
        cls,
        end_N: Tensor | Sequence[int],
        *,
        depth_N: Tensor | Sequence[int] | None = None,
        window: int | None = None,
        num_above: int = 0,
        device: torch.device | str | None = None,
    ) -> TreePlan:
        """Return the plan of a forest.

        end_N: one past the last descendant of each token, in depth-first pre-order; a token that
            pads has `end[i] = i + 1` and sees itself alone.
        depth_N: position of each token on its path; None counts from 0 at every root. A root may
            start anywhere, a child is one deeper than its parent.
        window: how many positions a query sees, itself among them; None: all.
        num_above: so many of the first tokens are keys and values alone, such as those of a part
            of the forest that ran before; attention then takes and gives the others' queries.
        device: of the tensors; None takes `end_N`'s, or the CPU.

        Raises `ValueError` for what is no forest in pre-order, naming the token.
        """
        if device is None:
            device = end_N.device if isinstance(end_N, Tensor) else "cpu"
        end = _vector("end_N", end_N)
        _check_end(end)
        depth = depths(end)
        if depth_N is not None:
            given = _vector("depth_N", depth_N)
            _check_depth(given, end)
            depth = given
        if window is not None and (not isinstance(window, int) or window < 1):
            raise ValueError(f"window is an int >= 1 or None, got {window!r}")
        if not isinstance(num_above, int) or not 0 <= num_above < len(end):
            raise ValueError(f"num_above is an int, 0 to {len(end) - 1}, got {num_above!r}")
        return cls(
            host_end_N=end,
            host_depth_N=depth,
            window=window,
            device=torch.device(device),
            num_above=num_above,
        )

    def __len__(self) -> int:
        return len(self.host_end_N)

    @property
    def end_N(self) -> Tensor:
        """int32 on the device: one past the last descendant of each token."""
        return self.once("end", lambda plan: plan.host_end_N.to(plan.device, torch.int32))

    @property
    def depth_N(self) -> Tensor:
        """int32 on the device: position of each token on its path."""
        return self.once("depth", lambda plan: plan.host_depth_N.to(plan.device, torch.int32))

    @cached_property
    def segment_starts(self) -> Tensor:
        """int64 [S + 1] on the CPU: where each run of tokens without a branch begins, and N.

        Tokens of a run have the same `end`; each but the first is the only child of the one before.
        """
        end = self.host_end_N
        changes = torch.nonzero(end[1:] != end[:-1])[:, 0] + 1
        return torch.cat([torch.zeros(1, dtype=torch.int64), changes, torch.tensor([len(end)])])

    @cached_property
    def num_pairs(self) -> int:
        """Visible (query, key) pairs that are asked for: what attention computes at least."""
        limit = len(self) if self.window is None else self.window
        return int((depths(self.host_end_N) + 1)[self.num_above :].clamp(max=limit).sum())

    def tiles(self, block_m: int, block_n: int) -> Tiles:
        """Return which tiles of queries and keys are visited, built on first use."""
        return self.once(
            ("tiles", block_m, block_n),
            lambda plan: build_tiles(
                plan.host_end_N,
                plan.host_depth_N,
                block_m=block_m,
                block_n=block_n,
                window=plan.window,
                num_above=plan.num_above,
            ),
        )

    def once(self, key: Hashable, make: Callable[[TreePlan], T]) -> T:
        """Return what `make` gives of this plan, made at its first use: all layers share a plan.

        make: the same for a key, whichever plan it is given.
        """
        if key not in self._made:
            self._made[key] = make(self)
            self._makers[key] = make
        made: T = self._made[key]
        return made

    def makers(self) -> Makers:
        """Return what was asked of this plan, for `make_ahead` of another."""
        return dict(self._makers)

    def make_ahead(self, makers: Makers) -> None:
        """Make what is going to be asked of this plan; not while another thread uses it.

        Lists of tiles come first: they stay on the CPU, and copies may have to wait for a GPU.
        """
        are_tiles = [isinstance(key, tuple) and key[0] == "tiles" for key in makers]
        for _, key in sorted(zip(are_tiles, makers, strict=True), key=lambda pair: not pair[0]):
            self.once(key, makers[key])

    def mask_QN(self) -> Tensor:
        """Return the dense mask: true where a query that is asked for (row) sees a key (column)."""
        keys = torch.arange(len(self), device=self.device)
        queries = keys[self.num_above :, None]
        mask_QN = (keys <= queries) & (queries < self.end_N)
        if self.window is not None:
            mask_QN &= self.depth_N[self.num_above :, None] - self.depth_N < self.window
        return mask_QN


def depths(end: Tensor) -> Tensor:
    """Return the number of ancestors of each token: how many intervals hold it besides its own."""
    num = len(end)
    num_closed = torch.bincount(end, minlength=num + 1)[:num].cumsum(0)
    return torch.arange(num) - num_closed


def parents(end: Tensor) -> Tensor:
    """Return each token's parent, -1 for roots: the last token before it that is one less deep."""
    num = len(end)
    index, depth = torch.arange(num), depths(end)
    keys = (depth * num + index).sort().values
    above = (depth - 1) * num
    place = torch.searchsorted(keys, above + index) - 1
    return torch.where(depth > 0, keys[place.clamp(min=0)] - above, -1)


def _vector(name: str, values: Tensor | Sequence[int]) -> Tensor:
    """Return a 1-D int64 tensor on the host."""
    tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(values)
    if tensor.ndim != 1:
        raise ValueError(f"{name} has one dimension, got shape {tuple(tensor.shape)}")
    if not 0 < len(tensor) <= MAX_TOKENS:
        raise ValueError(f"{name} has 1 to {MAX_TOKENS} tokens, got {len(tensor)}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise ValueError(f"{name} holds integers, got {tensor.dtype}")
    return tensor.to(torch.int64)


def _check_end(end: Tensor) -> None:
    """Raise for the first token whose descendants are no interval within its parent's."""
    num = len(end)
    index = torch.arange(num)
    bad = torch.nonzero((end <= index) | (end > num))[:, 0]
    if len(bad):
        i = int(bad[0])
        raise ValueError(f"end_N[{i}] is {int(end[i])}, allowed is {i + 1} to {num}")
    cut = torch.nonzero(_last_ends(end) > end)[:, 0]
    if len(cut):
        i = int(cut[0])
        stop = int(end[i])
        j = i + int(torch.nonzero(end[i:stop] > stop)[0, 0])
        raise ValueError(
            f"end_N[{j}] is {int(end[j])}, allowed is {j + 1} to {stop}: token {j} lies below"
            f" token {i}, whose end_N is {stop}"
        )


def _last_ends(end: Tensor) -> Tensor:
    """Return the largest `end` within each token's interval.

    A maximum over a range is that over two ranges of one power of two that cover it.
    """
    num = len(end)
    length = end - torch.arange(num)
    level = torch.frexp(length.double()).exponent - 1  # floor(log2(length))
    largest, result = end.clone(), end.clone()
    for exponent in range(int(level.max()) + 1):
        size = 1 << exponent
        chosen = torch.nonzero(level == exponent)[:, 0]
        result[chosen] = torch.maximum(largest[chosen], largest[end[chosen] - size])
        largest = torch.cat(
            [torch.maximum(largest[: num - size], largest[size:]), largest[num - size :]]
        )
    return result


def _check_depth(depth: Tensor, end: Tensor) -> None:
    if len(depth) != len(end):
        raise ValueError(f"depth_N has {len(depth)} tokens, end_N has {len(end)}")
    bad = torch.nonzero((depth < 0) | (depth > MAX_TOKENS))[:, 0]
    if len(bad):
        i = int(bad[0])
        raise ValueError(f"depth_N[{i}] is {int(depth[i])}, allowed is 0 to {MAX_TOKENS}")
    parent = parents(end)
    wrong = torch.nonzero((parent >= 0) & (depth != depth[parent.clamp(min=0)] + 1))[:, 0]
    if len(wrong):
        i = int(wrong[0])
        p = int(parent[i])
        raise ValueError(
            f"depth_N[{i}] is {int(depth[i])}, allowed is {int(depth[p]) + 1}: its parent, token"
            f" {p}, has depth {int(depth[p])}"
        )

"""Bytes that an op on a card reads and writes, and those that other cards send it.

An op reads each tensor that it is given once and writes each result once; of one that it indexes,
as much as it takes out or puts in. Not here: what else is counted of ops (`fake_card.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_aten, _c10d, _functional = torch.ops.aten, torch.ops.c10d, torch.ops._c10d_functional
_FIRST_UNREAD = frozenset(
    (
        _aten.copy_, _aten._foreach_copy_, _aten.zero_, _aten._foreach_zero_, _aten.fill_,
        _aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.new_zeros, _aten.new_ones,
        _aten.new_full, _c10d._allgather_base_, _c10d._reduce_scatter_base_,
    )
)  # fmt: skip
"""Ops that read nothing of their first argument: they write it, or only take its form."""
_TAKING = frozenset((_aten.embedding, _aten.index_select, _aten.index, _aten.gather))
"""Ops that take elements out of their first argument by an index."""
_PUTTING = {
    _aten.index_put_: 2, _aten._index_put_impl_: 2, _aten.index_add_: 3, _aten.index_copy_: 3,
    _aten.scatter_add_: 3,
}  # fmt: skip
"""Ops that put elements into their first argument by an index -> argument that has them."""
_MOVING = frozenset(
    (
        _c10d._allgather_base_, _functional.all_gather_into_tensor,
        _c10d._reduce_scatter_base_, _functional.reduce_scatter_tensor,
    )
)  # fmt: skip
"""A whole is made of every card's piece, or a piece of every card's whole."""
_REDUCING = frozenset((_c10d.allreduce_, _functional.all_reduce))


def extent(tensor: Tensor) -> int:
    """Return the bytes that reading a tensor touches: broadcast dimensions count once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size if stride else 1 for size, stride in sizes) * tensor.element_size()


def op_bytes(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> tuple[int, int]:
    """Return the bytes that an op reads and writes, and those that it is sent by other cards.

    All cards have as much. By a ring, which sends least: all pieces but its own; to add up, twice.
    """
    packet = func._overloadpacket
    is_unread = packet in _FIRST_UNREAD
    given = {key: value for key, value in kwargs.items() if key != "out"}
    read = _extents((args[is_unread:], given))
    written = _extents(_changed(func, args, kwargs)) or _extents(out)
    if packet is torch.ops.fsdp.all_gather_copy_in:  # it gives the whole in which its piece lies
        read = written = _extents(args[0])
    elif packet in _TAKING:
        read -= max(0, extent(args[0]) - written)
    elif packet in _PUTTING:
        put = min(extent(args[0]), extent(args[_PUTTING[packet]]))
        read, written = read - extent(args[0]) + put, put
    sent = 0
    if packet in _MOVING:
        sent = abs(read - written)
    elif packet in _REDUCING:
        num = torch.distributed.get_world_size()
        sent = 2 * (num - 1) * written // num
    return read + written, sent


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an op writes, as its schema says."""
    arguments = func._schema.arguments
    values = [*args, *(kwargs.get(each.name) for each in arguments[len(args) :])]
    return [
        value
        for each, value in zip(arguments, values, strict=True)
        if each.alias_info is not None and each.alias_info.is_write
    ]


def _extents(tree: Any) -> int:
    return sum(extent(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))

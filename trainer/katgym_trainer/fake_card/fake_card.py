"""A card that is not there, as a mode of torch's dispatcher: ops on it are counted.

    with FakeCard(find_card("h100")) as card:
        trainer = Trainer(model_on("cuda"), "grpo")
        trainer.step_rows(rows)
    card.counts()

`load_device_guard` comes before torch. Tensors on "cuda" have shape, dtype, device and storage, and
no values; tensors on the CPU are real, so that plans are made as ever. The least time of an op is
what its bytes or its operations take at the card's rates, the longer one; nothing overlaps. Found:
devices that do not match, ops without a rule for CUDA, what fails under checkpointing and in the
backward. Not found: wrong values, and the time that an op takes above its least one.
`torch.compile` refuses such a mode.
Not here: launches of Triton kernels (`triton_launches.py`), memory (`card_memory.py`), what Python
asks of `torch.cuda` (`cuda_stand_ins.py`).
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from katgym_trainer.fake_card.card_memory import CardMemory, place
from katgym_trainer.fake_card.cards import Card
from katgym_trainer.fake_card.cuda_stand_ins import cuda_stand_ins
from katgym_trainer.fake_card.op_bytes import extent, op_bytes
from katgym_trainer.fake_card.step_counts import OpCounts, StepCounts
from katgym_trainer.fake_card.triton_launches import counted_launches

_aten = torch.ops.aten
_LAUNCH_S = 2e-6
"""Least seconds of any op: the start of a kernel."""
_HALF = (torch.bfloat16, torch.float16)
_NO_LAUNCH = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach",
    "_unsafe_view", "reshape", "lift_fresh",
}  # fmt: skip
"""Ops that launch nothing, beside views."""
_WAITING = frozenset(
    (
        _aten._local_scalar_dense, _aten.equal, _aten.nonzero, _aten.masked_select,
        _aten.unique_consecutive, _aten._unique2, _aten.repeat_interleave,
    )
)  # fmt: skip
"""Ops that give numbers, or as many elements as a value says."""


class FakeCard(TorchDispatchMode):
    """Counts what ops on a card do, and the memory of its tensors; ops on the CPU run as they are.

    Example:
        FakeCard(find_card("h100"))
    """

    def __init__(self, card: Card, *, num: int = 1) -> None:
        """num: cards, of which this process has the first; the others are not there at all."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.card, self.num = card, num
        self.memory = CardMemory()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._ops: dict[str, OpCounts] = {}
        self._waits: collections.Counter[str] = collections.Counter()
        self._copies: collections.Counter[str] = collections.Counter()
        self._received_bytes = 0
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> FakeCard:
        logger = logging.getLogger("torch._subclasses.fake_tensor")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # it logs what it raises
        with contextlib.ExitStack() as stack:
            stack.callback(logger.setLevel, level)
            stack.enter_context(cuda_stand_ins(self.card, self.num, self.memory))
            stack.enter_context(counted_launches(self.card, self._count_kernel))
            stack.enter_context(self._fake)
            super().__enter__()  # type: ignore[no-untyped-call]  # torch
            stack.push(super().__exit__)
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.__exit__(kind, error, trace)

    def clear(self) -> None:
        """Forget what was counted; tensors stay where they are."""
        self._ops, self._waits, self._copies = {}, collections.Counter(), collections.Counter()
        self._received_bytes = 0
        self.memory.begin()

    def counts(self) -> StepCounts:
        """Return what was counted since it was cleared."""
        return StepCounts(
            peak_bytes=self.memory.peak_bytes,
            begun_bytes=self.memory.begun_bytes,
            held_bytes=self.memory.live_bytes,
            peak_at=self.memory.peak_at,
            ops=dict(self._ops),
            waits=dict(self._waits),
            copies=dict(self._copies),
            received_bytes=self._received_bytes,
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(leaf, DTensor) for leaf in leaves):
            return NotImplemented  # it comes back with the pieces that lie here
        fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
        if not fakes and not any(map(_is_card, leaves)):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        packet = getattr(func, "_overloadpacket", func)
        on_card = [fake for fake in fakes if fake.device.type == "cuda"]
        if _has_wait(packet, args, kwargs, on_card):
            self._waits[f"{_name(packet)} {place()}"] += 1
            if (answer := _answer(packet, args, kwargs)) is not NotImplemented:
                return answer
        if _is_copy(packet, leaves, on_card):
            self._copies[place()] += 1
        out = func(*args, **kwargs)
        outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, FakeTensor)]
        for tensor in outs:
            if tensor.device.type == "cuda":
                self.memory.hold(tensor)
        if outs or func._schema.is_mutable:
            self._count(func, args, kwargs, out, outs or fakes)
        return out

    def _count(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        written: Sequence[FakeTensor],
    ) -> None:
        """Count an op that launches a kernel."""
        packet = func._overloadpacket
        is_on_card = any(tensor.device.type == "cuda" for tensor in written)
        if func.is_view or not is_on_card or _name(packet) in _NO_LAUNCH:
            return
        operations = 0.0
        if packet in flop_registry:
            operations = flop_registry[packet](*args, **kwargs, out_val=out)
        if packet is _aten._grouped_mm:
            operations = 2 * args[0].numel() * args[1].shape[-1]
        elif packet is _aten.convolution_backward:  # as if every channel met every other
            operations /= args[9]
        leaves = tree_leaves((args, kwargs))
        is_half = any(isinstance(leaf, Tensor) and leaf.dtype in _HALF for leaf in leaves)
        num_bytes, num_received = op_bytes(func, args, kwargs, out)
        self._received_bytes += num_received
        self._add_launch(_name(packet), num_bytes, operations, is_half=is_half)

    def _count_kernel(self, name: str, tensors: Collection[Tensor]) -> None:
        """Count a Triton kernel: it reads or writes every tensor once."""
        num_bytes = sum(map(extent, tensors))
        self._add_launch(f"triton {name}", num_bytes, 0, is_half=True)

    def _add_launch(self, name: str, num_bytes: int, operations: float, *, is_half: bool) -> None:
        """Count one launch of an op."""
        rate = self.card.half_per_s if is_half else self.card.single_per_s
        least = max(num_bytes / self.card.bytes_per_s, operations / rate, _LAUNCH_S)
        one = OpCounts(launches=1, bytes_moved=num_bytes, operations=operations, least_s=least)
        self._ops[name] = self._ops.get(name, OpCounts()) + one


def _name(packet: Any) -> str:
    return str(packet).removeprefix("aten.")


def _is_card(value: object) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _has_wait(
    packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_card: Sequence[FakeTensor]
) -> bool:
    """Return whether the host waits in an op for what the card has computed."""
    if packet is _aten.copy_:
        return not isinstance(args[0], FakeTensor)
    if packet is _aten._to_copy:
        return bool(on_card) and "device" in kwargs and not _is_card(kwargs["device"])
    return bool(on_card) and packet in _WAITING


def _answer(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an op gives that the host waits for; NotImplemented: what a fake one gives.

    Numbers are 1.0, 0 and False, tensors equal; where counts are values, every element is found.
    """
    first = args[0]
    if packet is _aten._local_scalar_dense:
        if first.dtype is torch.bool:
            return False
        return 1.0 if first.dtype.is_floating_point else 0
    if packet is _aten.equal:
        return True
    if packet is _aten.copy_:
        return first
    if packet is _aten._to_copy:
        with unset_fake_temporarily():
            return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
    num, device = first.numel(), first.device
    if packet is _aten.nonzero:
        return torch.empty((num, first.dim()), dtype=torch.int64, device=device)
    if packet is _aten.repeat_interleave:
        return torch.empty(num, dtype=torch.int64, device=device)
    if packet is _aten._unique2:
        values = torch.empty(num, dtype=first.dtype, device=device)
        inverse = torch.empty(first.shape, dtype=torch.int64, device=device)
        return values, inverse, torch.empty(num, dtype=torch.int64, device=device)
    return NotImplemented


def _is_copy(packet: Any, leaves: Sequence[Any], on_card: Sequence[FakeTensor]) -> bool:
    """Return whether an op hands the card a tensor of the host's."""
    if packet is _aten.copy_:
        has_real = any(
            isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) for leaf in leaves
        )
        return not on_card or has_real
    return packet is _aten._to_copy and not on_card

"""Launches of Triton kernels on a card that is not there: compiled for it, counted, not run.

A kernel is compiled by the very arguments of its launch; one that asks for more shared memory than
the card has is an error. Nothing is timed: of several configurations the first is taken. Not here:
ops of torch (`fake_card.py`).
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from triton.backends.compiler import GPUTarget

from katgym_trainer.fake_card.cards import Card
from katgym_trainer.fake_card.cuda_stand_ins import replaced

Count = Callable[[str, Collection[Tensor]], None]
"""Told of a launch: the kernel's name and its tensors."""


class KernelError(RuntimeError):
    """A kernel that could not run: tensors of two devices, or too much shared memory."""


class _Pointer:
    """What Triton reads of a tensor: at an address that is a multiple of 16 bytes."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype, self.shape, self._strides = tensor.dtype, tensor.shape, tensor.stride()
        self._address = int(tensor.storage_offset()) * tensor.element_size()

    def stride(self, dimension: int | None = None) -> Any:
        """Return one stride, or all."""
        return self._strides if dimension is None else self._strides[dimension]

    def data_ptr(self) -> int:
        """Return the address in a storage that begins at 0."""
        return self._address

    @staticmethod
    def ptr_range() -> int:
        """Return 0: how much can be reached is not known."""
        return 0


class _Driver:
    """Triton's driver of a card that is not there."""

    def __init__(self, card: Card) -> None:
        major, minor = card.capability
        self._target = GPUTarget("cuda", 10 * major + minor, 32)
        properties = {
            "max_shared_mem": card.shared_bytes,
            "multiprocessor_count": card.num_processors,
            "warpSize": 32,
            "max_num_regs": 65_536,
        }
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda _: properties, load_binary=None
        )

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        return "int"

    @staticmethod
    def is_active() -> bool:
        return True


def counted_launches(card: Card, count: Count) -> contextlib.AbstractContextManager[None]:
    """Have Triton compile for a card, and tell of its launches, within."""
    return replaced(_list_replacements(card, count))


def _list_replacements(card: Card, count: Count) -> Iterator[tuple[Any, str, Any]]:
    runtime = triton.runtime
    yield runtime.jit.JITFunction, "run", _counting(card, count, runtime.jit.JITFunction.run)
    yield runtime.autotuner.Autotuner, "run", _run_first
    yield runtime.driver, "_active", _Driver(card)


def _run_first(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    return tuner.fn.run(*args, **kwargs, **tuner.configs[0].all_kwargs())


def _counting(card: Card, count: Count, real: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        name = kernel.fn.__name__
        tensors = {id(a): a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)}.values()
        devices = sorted({str(tensor.device) for tensor in tensors})
        if len(devices) > 1 or not all(isinstance(tensor, FakeTensor) for tensor in tensors):
            raise KernelError(f"kernel {name!r} is given tensors on {devices}")
        with unset_fake_temporarily():
            made = real(
                kernel,
                *map(_pointed, args),
                grid=grid,
                warmup=True,
                **{key: _pointed(value) for key, value in kwargs.items()},
            )
        if made is not None and made.metadata.shared > card.shared_bytes:
            raise KernelError(
                f"kernel {name!r} asks for {made.metadata.shared:,} bytes of shared memory,"
                f" {card.title} has {card.shared_bytes:,}"
            )
        count(name, tensors)
        return made

    return run


def _pointed(value: Any) -> Any:
    return _Pointer(value) if isinstance(value, Tensor) else value

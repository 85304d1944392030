"""What Python asks of `torch.cuda`, answered for a card that is not there.

Everything is put back at the end. Threads of pools run at once, in the thread that submits, since
modes of the dispatcher belong to a thread. Not here: what C++ asks (`device_guard.py`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from katgym_trainer.fake_card.card_memory import CardMemory
from katgym_trainer.fake_card.cards import Card


class Stream:
    """A stream or an event on which nothing waits."""

    stream_id = device_index = 0
    device_type = 1
    device = torch.device("cuda", 0)

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_event(self, *_: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...
    def record_event(self, *_: Any) -> Stream:
        """Return an event."""
        return self

    def query(self) -> bool:
        """Return that all is done."""
        return True


@contextlib.contextmanager
def replaced(replacements: Iterator[tuple[Any, str, Any]]) -> Iterator[None]:
    """Have attributes of modules and classes replaced within."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def cuda_stand_ins(
    card: Card, num: int, memory: CardMemory
) -> contextlib.AbstractContextManager[None]:
    """Have cards stand in for what `torch.cuda` would ask a driver for; memory: of the first."""
    return replaced(_list_stand_ins(card, num, memory))


def _list_stand_ins(card: Card, num: int, memory: CardMemory) -> Iterator[tuple[Any, str, Any]]:
    cuda = torch.cuda
    major, minor = card.capability
    properties = types.SimpleNamespace(
        name=card.title,
        major=major,
        minor=minor,
        multi_processor_count=card.num_processors,
        total_memory=card.memory_bytes,
        warp_size=32,
    )
    size = card.memory_bytes
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "device_count": lambda: num,
        "get_device_capability": lambda *_: card.capability,
        "get_device_name": lambda *_: card.title,
        "get_device_properties": lambda *_: properties,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "is_available": _is_asked_by_katgym,
        "max_memory_allocated": lambda *_: memory.peak_bytes,
        "mem_get_info": lambda *_: (size - memory.live_bytes, size),
        "memory_allocated": lambda *_: memory.live_bytes,
        "reset_peak_memory_stats": lambda *_: memory.begin(),
        "set_device": lambda *_: None,
        "set_rng_state": lambda *_: None,
        "stream": lambda _: contextlib.nullcontext(),
        "synchronize": lambda *_: None,
        "current_stream": lambda *_: Stream(),
        "Stream": Stream,
        "Event": Stream,
    }
    if num > 1:
        answers["is_initialized"] = lambda: True
    for name, answer in answers.items():
        yield cuda, name, answer
    yield torch.accelerator, "current_stream", lambda *_: Stream()
    yield torch.UntypedStorage, "resize_", _resizing(torch.UntypedStorage.resize_, memory)
    yield torch.nn.Module, "_apply", _applying(torch.nn.Module._apply)
    yield concurrent.futures.ThreadPoolExecutor, "submit", _run_at_once


def _is_asked_by_katgym() -> bool:
    """Say that there is a card to katgym, and not to torch, which would ask for a driver."""
    return str(sys._getframe(1).f_globals.get("__name__", "")).startswith("katgym")


def _resizing(real: Callable[..., Any], memory: CardMemory) -> Callable[..., Any]:
    """Return `resize_` of storages; FSDP gives a layer's memory back by making it empty."""

    def resize(storage: Any, size: int) -> Any:
        found = real(storage, size)
        memory.set_size(storage, size)
        return found

    return resize


def _applying(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Module._apply` that replaces fake parameters, which torch would swap and may not."""

    def apply(module: torch.nn.Module, function: Callable[..., Any], recurse: bool = True) -> Any:
        tensors = [*module.parameters(), *module.buffers()]
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return real(module, function, recurse)
        for child in module.children():
            child._apply(function)  # type: ignore[no-untyped-call]  # torch
        holders: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for holder in holders:
            for name, tensor in holder.items():
                if tensor is None:
                    continue
                with torch.no_grad():
                    new = function(tensor)
                if (new.device, new.dtype) != (tensor.device, tensor.dtype):
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    holder[name] = (
                        torch.nn.Parameter(new, tensor.requires_grad) if is_parameter else new
                    )
        return module

    return apply


def _run_at_once(
    pool: object, work: Callable[..., Any], *args: Any, **kwargs: Any
) -> concurrent.futures.Future[Any]:
    found: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        found.set_result(work(*args, **kwargs))
    except BaseException as e:
        found.set_exception(e)  # as a pool does
    return found

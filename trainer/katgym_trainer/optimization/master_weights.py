"""float32 copies of bfloat16 parameters: gradients are added up in them, optimizers change them.

A bfloat16 number has 8 binary digits: what is added and is less than 1/512 of it is lost, be it an
update of a weight or one forest's gradient in the sum of many. Where memory is short there are
copies only while an optimizer changes them, and updates are rounded up or down at random. Not here:
optimizers (`optimization/optimizers.py`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

_PIECE = 1 << 24
"""Numbers that are rounded at a time: random ones and what comes of them take 13 bytes each."""


class MasterWeights:
    """What an optimizer steps in place of a model's parameters.

    A bfloat16 parameter has a float32 master. As soon as a backward has its gradient, that is added
    to the master's and freed, so that the sum over forests is in float32; until `close`, nobody
    else sees it. Parameters of float32 or wider are their own masters.

    Example:
        masters = MasterWeights(model.named_parameters())
        optimizer = make_optimizer(masters.named(), config)
        optimizer.step(masters)
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]], *, is_kept: bool = True
    ) -> None:
        """Copy; `ValueError` for a parameter of another dtype, float16 among them.

        is_kept: keep masters' values, which are rounded to the nearest; False: they are zeros that
            take no memory, and hold the parameters' values while `hold` has them alone.
        """
        self._is_kept = is_kept
        self._generators: dict[torch.device, torch.Generator] = {}
        self._parameters = dict(named_parameters)
        self._named = {n: _make_master(n, p, is_kept) for n, p in self._parameters.items()}
        self._copies = [
            (parameter, self._named[name])
            for name, parameter in self._parameters.items()
            if self._named[name] is not parameter
        ]
        self._parameter_of = {id(master): parameter for parameter, master in self._copies}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(_move, master))  # type: ignore[no-untyped-call]  # torch has no annotation
            for parameter, master in self._copies
        ]

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what the optimizer steps, under the parameters' names."""
        yield from self._named.items()

    def scale_gradients(self, factor: float) -> None:
        """Multiply them all."""
        for master in self._named.values():
            if master.grad is not None:
                master.grad.mul_(factor)

    def clear_gradients(self) -> None:
        """Free the gradients of masters and of parameters."""
        for tensor in self._named.values():
            tensor.grad = None
        for parameter, _ in self._copies:
            parameter.grad = None

    def weights(self) -> dict[str, Tensor]:
        """Return the tensors that training goes on from, under the parameters' names."""
        return dict(self._named) if self._is_kept else dict(self._parameters)

    def reseed(self, *entropy: int) -> None:
        """Begin anew with the random numbers that rounding draws."""
        (seed,) = np.random.SeedSequence(entropy).generate_state(1)
        for device in {parameter.device for parameter, _ in self._copies}:
            self._generators[device] = torch.Generator(device).manual_seed(int(seed))

    @contextlib.contextmanager
    def hold(self, masters: Iterable[Tensor]) -> Iterator[None]:
        """Have some masters' values within, for an optimizer; then round them into the parameters.

        Raises `RuntimeError` where random numbers are needed and `reseed` was not called.
        """
        copies = [(self._parameter_of[id(m)], m) for m in masters if id(m) in self._parameter_of]
        if not self._is_kept:
            for parameter, master in copies:
                if parameter.device not in self._generators:
                    raise RuntimeError("rounding draws random numbers: call reseed first")
                master.data = parameter.detach().float()
        yield
        with torch.no_grad():
            for parameter, master in copies:
                if self._is_kept:
                    parameter.copy_(master)
                else:
                    generator = self._generators[parameter.device]
                    both = (parameter.detach(), master.detach())
                    rows, values = (each if each.ndim else each.view(1) for each in both)
                    num = max(1, _PIECE * len(rows) // max(1, rows.numel()))
                    for i in range(0, len(rows), num):
                        piece = slice(i, i + num)
                        rows[piece] = round_stochastically(values[piece], generator)
                    master.data = _zeros(parameter)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take all weights' values, by name, rounded to the nearest where they are bfloat16."""
        for name, weight in self.weights().items():
            weight.copy_(tensors[name])
        for parameter, master in self._copies if self._is_kept else ():
            parameter.copy_(master)

    def close(self) -> None:
        """Leave the parameters' gradients alone from here on. May be called twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def round_stochastically(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return float32 values as bfloat16, up or down at random, so that each mean is the value.

    bfloat16 is float32 without the last 16 bits: what a random number below 2^16 carries into the
    others, when it is added to these, is as likely as they are large (arXiv 2010.06192).
    """
    noise = torch.randint(
        0, 1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator
    )
    rounded = noise.add_(values.contiguous().view(torch.int32)).bitwise_and_(-1 << 16)
    return torch.where(values.isfinite(), rounded.view(torch.float32), values).bfloat16()


def _make_master(name: str, parameter: torch.nn.Parameter, is_kept: bool) -> Tensor:
    """Return what an optimizer steps in place of a parameter; `ValueError` for another dtype."""
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    if parameter.dtype is torch.bfloat16:
        master = parameter.detach().float() if is_kept else _zeros(parameter)
        return master.requires_grad_()
    raise ValueError(
        f"parameter {name!r} is {parameter.dtype}; float32, float64 and bfloat16 can be trained"
    )


def _zeros(parameter: Tensor) -> Tensor:
    """Return float32 zeros of a parameter's shape, in the memory of one."""
    return torch.zeros((), dtype=torch.float32, device=parameter.device).expand(parameter.shape)


def _move(master: Tensor, parameter: Tensor) -> None:
    """Add a parameter's gradient to its master's, and free it."""
    gradient = parameter.grad
    if gradient is None:
        raise RuntimeError(
            "a parameter's gradient was taken by other master weights: close the trainer that the"
            " model had before"
        )
    parameter.grad = None
    if master.grad is None:
        master.grad = gradient.float()
    else:
        master.grad.add_(gradient)

"""float32 copies of bfloat16 parameters: gradients are added up in them, optimizers change them.

A bfloat16 number has 8 binary digits: what is added and is less than 1/512 of it is lost, be it an
update of a weight or one forest's gradient in the sum of many. Not here: optimizers
(`optimization/optimizers.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor


class MasterWeights:
    """What an optimizer steps in place of a model's parameters.

    A bfloat16 parameter has a float32 master. As soon as a backward has its gradient, that is added
    to the master's and freed, so that the sum over forests is in float32; until `close`, nobody
    else sees it. Parameters of float32 or wider are their own masters.

    Example:
        masters = MasterWeights(model.named_parameters())
        optimizer = make_optimizer(masters.named(), config)
    """

    def __init__(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Copy; `ValueError` for a parameter of another dtype, float16 among them."""
        self._named: dict[str, Tensor] = {}
        self._copies: list[tuple[torch.nn.Parameter, Tensor]] = []
        for name, parameter in named_parameters:
            if parameter.dtype in (torch.float32, torch.float64):
                self._named[name] = parameter
            elif parameter.dtype is torch.bfloat16:
                master = parameter.detach().float().requires_grad_()
                self._named[name] = master
                self._copies.append((parameter, master))
            else:
                raise ValueError(
                    f"parameter {name!r} is {parameter.dtype}; float32, float64 and bfloat16 can"
                    " be trained"
                )
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

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model's parameters."""
        for parameter, master in self._copies:
            parameter.copy_(master)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take all masters' values, by name, and round them into the parameters."""
        for name, master in self._named.items():
            master.copy_(tensors[name])
        self.publish()

    def close(self) -> None:
        """Leave the parameters' gradients alone from here on. May be called twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


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

"""Routing replay: routers of a mixture of experts take the experts that the sampler took.

Sampler and trainer compute scores that differ in their last bits, and where two experts are nearly
equal they choose otherwise. Replayed (Rollout Routing Replay, arXiv 2510.11370), both run the same
experts; weights and gradients are those of the trainer's own scores of the given experts.

Routers of transformers choose by `torch.topk` over the scores of all experts, whatever they do
before and after. Within a layer's blocks that call is answered with the given experts:

    indices = given where told, else topk(scores).indices
    values = scores.gather(-1, indices)

Where a router first chooses groups of experts, the groups of the given ones are among them. Not
here: whose routes a token has (`packing/packed_forest.py`).

Letters: N packed tokens, L layers, K experts of a token, E experts of a layer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_COUNTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Names that configs have for the experts of a layer."""
_TOPK = (torch.topk, torch.Tensor.topk)
_HINT = (
    "they are of another model than the one that is trained. Serve that one, or leave them out:"
    " row.replace(routes=None), or a server without --enable-return-routed-experts"
)


class RoutingReplay:
    """The routers of one model, and what they are given."""

    def __init__(self, name: str, config: Any, layers: Sequence[torch.nn.Module]) -> None:
        """name: of the model, for messages. config: of its text. layers: of its decoder."""
        found = [getattr(config, each, None) or 0 for each in _COUNTS]
        counts = [max(each) if isinstance(each, (list, tuple)) else int(each) for each in found]
        self.num_experts = next(filter(None, counts), 0)
        """Of a layer; 0: the model has none."""
        self._name = name
        self._layers = list(layers)
        self._routes: Tensor | None = None
        self._replayed: set[int] = set()
        self._entered: list[contextlib.ExitStack] = []
        self._num_compared: Tensor | int = 0
        self._num_different: Tensor | int = 0
        self._is_other_group: Tensor | None = None
        """Whether each token's router chose groups without its given experts, between two calls."""

    def check(self, routes_NLK: Tensor) -> None:
        """Raise `ValueError` for routes that the model cannot have."""
        num_layers, largest = routes_NLK.shape[1], int(routes_NLK.max())
        if not self.num_experts or num_layers != len(self._layers):
            has = f"{len(self._layers)} layers" if self.num_experts else "no experts"
            raise ValueError(
                f"rows have expert routes of {num_layers} layers, {self._name} has {has}: {_HINT}"
            )
        if largest >= self.num_experts:
            raise ValueError(
                f"rows have routes to expert {largest}, {self._name} has {self.num_experts} in a"
                f" layer: {_HINT}"
            )
        if any(layer._compiled_call_impl is not None for layer in self._layers):
            raise ValueError(
                f"rows have expert routes, and the layers of {self._name} are compiled, which"
                " replay none: leave out should_compile, or the routes (row.replace(routes=None))"
            )

    def install(self, stack: contextlib.ExitStack, is_left_out: Callable[[Any], bool]) -> None:
        """Have the layers' blocks replay what `begin` is given, until the stack is closed.

        is_left_out: whether a block is none that a router is in, as attention.
        """
        stack.callback(self.begin, None)
        if not self.num_experts:
            return
        for number, layer in enumerate(self._layers):
            for block in layer.children():
                if not is_left_out(block) and layer._compiled_call_impl is None:
                    enter = functools.partial(self._enter, number)
                    stack.enter_context(block.register_forward_pre_hook(enter))
                    leave = block.register_forward_hook(
                        lambda *_: self._entered.pop().close(), always_call=True
                    )
                    stack.enter_context(leave)

    def begin(self, routes_NLK: Tensor | None) -> None:
        """Give the routes of the forest that runs from here on; None: routers choose themselves.

        routes_NLK: on the model's device; -1 where a token's are not told.
        """
        self._routes = routes_NLK
        self._replayed.clear()

    def check_replayed(self, routes_NLK: Tensor) -> None:
        """Raise `ValueError` unless the layers that replayed are those that the routes speak of."""
        told_N = torch.nonzero(routes_NLK[:, 0, 0] >= 0)[:, 0]
        for layer in set(range(routes_NLK.shape[1])) - self._replayed:
            if bool(routes_NLK[told_N, layer].any()):
                raise ValueError(
                    f"rows have expert routes of layer {layer}, in which {self._name} asks no"
                    f" torch.topk over {self.num_experts} experts: it has none there, or chooses"
                    " otherwise and replays none; leave them out: row.replace(routes=None)"
                )
        for layer in sorted(self._replayed) if len(told_N) else ():
            if len(set(routes_NLK[told_N[0], layer].tolist())) < routes_NLK.shape[2]:
                raise ValueError(
                    f"rows have routes of layer {layer} that name an expert twice, and {self._name}"
                    f" has experts there: {_HINT}"
                )

    def take_counts(self) -> tuple[float, float]:
        """Return how many (token, layer) chose otherwise than told, and were told; from 0 again.

        Of forwards that gradients are computed of.
        """
        found = float(self._num_different), float(self._num_compared)
        self._num_different = self._num_compared = 0
        return found

    def choose(self, layer: int, scores: Tensor, k: int, **options: Any) -> Any:
        """Return what `torch.topk` is to return in a layer."""
        assert self._routes is not None
        routes_NK = self._routes[:, layer]
        num, width = len(routes_NK), scores.shape[-1]
        is_last = options.get("dim", -1) in (-1, scores.ndim - 1)
        if scores.shape[:-1] not in ((num,), (1, num)) or not is_last:
            return torch.topk(scores, k, **options)
        given = routes_NK.long().view(*scores.shape[:-1], -1)
        if width == self.num_experts:
            return self.choose_experts(layer, scores, given, k=k, **options)
        if self.num_experts % width == 0:
            return self.choose_groups(scores, given, k=k, **options)
        return torch.topk(scores, k, **options)

    def choose_experts(
        self, layer: int, scores: Tensor, given: Tensor, *, k: int, **options: Any
    ) -> Any:
        """Return the given experts with the scores of each; the best ones where none are told."""
        if k != given.shape[-1]:
            raise ValueError(
                f"rows have routes to {given.shape[-1]} experts of a token, {self._name} takes {k}"
                f" in layer {layer}: {_HINT}"
            )
        own = torch.topk(scores, k, **options).indices
        is_told = given[..., :1] >= 0
        self._replayed.add(layer)
        is_other = (own.sort(-1).values != given.sort(-1).values).any(-1, keepdim=True)
        if self._is_other_group is not None:
            is_other, self._is_other_group = is_other | self._is_other_group, None
        if torch.is_grad_enabled():
            self._num_different = self._num_different + (is_other & is_told).sum()
            self._num_compared = self._num_compared + is_told.sum()
        indices = torch.where(is_told, given, own)
        return torch.return_types.topk((scores.gather(-1, indices), indices))

    def choose_groups(self, scores: Tensor, given: Tensor, *, k: int, **options: Any) -> Any:
        """Return the best groups of experts, those of the given experts before all others."""
        is_told = given >= 0
        groups = given.clamp(min=0) // (self.num_experts // scores.shape[-1])
        own = torch.topk(scores, k, **options).indices
        is_own = (groups[..., None] == own[..., None, :]).any(-1)
        self._is_other_group = ~is_own.all(-1, keepdim=True)
        is_wanted = torch.zeros_like(scores).scatter_reduce(
            -1, groups, is_told.to(scores.dtype), "amax"
        )
        return torch.topk(scores.masked_fill(is_wanted > 0, torch.inf), k, **options)

    def _enter(self, layer: int, *_: Any) -> None:
        stack = contextlib.ExitStack()
        if self._routes is not None:
            stack.enter_context(_Topk(functools.partial(self.choose, layer)))
        self._entered.append(stack)


class _Topk(TorchFunctionMode):
    """Within, `torch.topk` is answered by a function."""

    def __init__(self, choose: Callable[..., Any]) -> None:
        super().__init__()
        self._choose = choose

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer one call of any function of torch."""
        named = dict(kwargs or {})
        if func not in _TOPK:
            return func(*args, **named)
        named.update(zip(("input", "k", "dim", "largest", "sorted"), args, strict=False))
        return self._choose(named.pop("input"), named.pop("k"), **named)

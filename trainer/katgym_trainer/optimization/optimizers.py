"""AdamW, in 32 or 8 bits, and Muon with AdamW, over parameters by name; schedules; clipping.

Not here: float32 copies of bfloat16 parameters (`optimization/master_weights.py`), 8-bit AdamW
itself (`optimization/adamw_8bit.py`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from katgym_trainer.config.rules import CountOrZero, check_value
from katgym_trainer.optimization.master_weights import MasterWeights
from katgym_trainer.ranks.ranks import whole
from katgym_trainer.trainer_config import TrainerConfig


class Optimizer:
    """Some of torch's optimizers, stepped as one, whose state is known by parameters' names.

    Example:
        optimizer = make_optimizer(model.named_parameters(), TrainerConfig(optimizer="muon"))
    """

    def __init__(
        self, parts: Sequence[torch.optim.Optimizer], parameters: Mapping[str, Tensor]
    ) -> None:
        self.parts = parts
        self._names = {id(parameter): name for name, parameter in parameters.items()}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use it from the next step on."""
        for part in self.parts:
            for group in part.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(learning_rate)
                else:
                    group["lr"] = learning_rate

    def step(self, masters: MasterWeights | None = None) -> None:
        """Change the parameters by their gradients; those without one stay as they are.

        masters: what the parameters are, to be rounded into the model's; None: they are its own.
        """
        for part in self.parts:
            held = masters.hold(self._by_name(part).values()) if masters else None
            with held or contextlib.nullcontext():
                part.step()

    def zero_grad(self) -> None:
        """Free the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as `{parameter}.{entry}`; the tensors are the optimizer's own.

        Example:
            optimizer.state_dict()["model.norm.weight.exp_avg"]
        """
        return {
            f"{name}.{entry}": value
            for part in self.parts
            for name, parameter in self._by_name(part).items()
            for entry, value in _plain(part.state.get(parameter, {}))
        }

    def check_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raise `ValueError` for a state that does not belong to these parameters."""
        wanted: dict[str, dict[str, torch.Size]] = {}
        for part in self.parts:
            for name, parameter in self._by_name(part).items():
                like = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                new = _new_state(part, like)
                wanted[name] = {entry: value.shape for entry, value in _plain(new)}
        for key, value in state.items():
            name, _, entry = key.rpartition(".")
            if entry not in wanted.get(name, ()):
                raise ValueError(f"the optimizer has no state {key!r}")
            if value.shape != wanted[name][entry]:
                raise ValueError(
                    f"optimizer state {key!r} has shape {list(value.shape)}, the parameter's is"
                    f" {list(wanted[name][entry])}"
                )
        for name in {key.rpartition(".")[0] for key in state}:
            missing = [entry for entry in wanted[name] if f"{name}.{entry}" not in state]
            if missing:
                raise ValueError(f"the optimizer's state of {name!r} lacks {missing[0]!r}")

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state, which is copied; `ValueError` for one of other parameters."""
        self.check_state_dict(state)
        with_state = {key.rpartition(".")[0] for key in state}
        for part in self.parts:
            found: dict[int, dict[str, Tensor]] = {}
            for number, (name, parameter) in enumerate(self._by_name(part).items()):
                if name in with_state:
                    found[number] = _new_state(part, parameter.detach())
                    for entry, value in _plain(found[number]):
                        value.copy_(state[f"{name}.{entry}"])
            groups = part.state_dict()["param_groups"]
            part.load_state_dict({"state": found, "param_groups": groups})

    def _by_name(self, part: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Return a part's parameters by name, in the part's order."""
        return {self._names[id(p)]: p for group in part.param_groups for p in group["params"]}


def make_optimizer(
    named_parameters: Iterable[tuple[str, Tensor]],
    config: TrainerConfig,
    *,
    vocabulary: Collection[str] = (),
) -> Optimizer:
    """Return the config's optimizer, at its learning rate.

    vocabulary: names of embeddings and heads, which Muon leaves to AdamW.

    Muon takes the other matrices, and scales its update to the size of AdamW's, so that one
    learning rate serves both (arXiv 2502.16982, section 2.2):

        W -= learning_rate (0.2 sqrt(max(rows, columns)) orthogonal(momentum) + weight_decay W)

    Everything else is AdamW's: vectors, stacks of matrices (experts), `vocabulary`.

    With stochastic rounding each parameter has an optimizer of its own, so that one at a time has a
    float32 copy.
    """
    parameters = dict(named_parameters)
    if not parameters:
        raise ValueError("there is no parameter to train")
    hidden = {
        name
        for name, parameter in parameters.items()
        if config.optimizer == "muon" and parameter.ndim == 2 and name not in vocabulary
    }
    alone = [[name] for name in parameters] if config.rounding == "stochastic" else [[*parameters]]
    parts: list[torch.optim.Optimizer] = []
    for names in alone:
        by_muon = [parameters[name] for name in names if name in hidden]
        others = [parameters[name] for name in names if name not in hidden]
        if by_muon:
            parts.append(
                torch.optim.Muon(
                    by_muon,
                    lr=config.learning_rate,
                    weight_decay=config.weight_decay,
                    momentum=config.momentum,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if others:
            parts.append(_make_adamw(others, config))
    return Optimizer(parts, parameters)


def _make_adamw(parameters: Sequence[Tensor], config: TrainerConfig) -> torch.optim.Optimizer:
    """Return AdamW of some parameters, of which vectors have no decay."""
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [(matrices, config.weight_decay), (vectors, 0.0)]
    given = [{"params": some, "weight_decay": decay} for some, decay in groups if some]
    options: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.epsilon,
    }
    if config.optimizer == "adamw_8bit":
        from katgym_trainer.optimization.adamw_8bit import AdamW8bit  # imports torchao

        return AdamW8bit(given, **options)
    # One pass over the weights, and no copy of them; None is torch's own choice.
    fused = all(parameter.is_cuda for parameter in parameters) or None
    return torch.optim.AdamW(given, fused=fused, **options)


def schedule_factor(
    step: int, config: TrainerConfig, *, update: int = 0, num_updates: int = 1
) -> float:
    """Return what the learning rate of a step's update is multiplied by; the first of each is 0.

    With u updates a step, t = step + update / u, w warm-up steps, n steps in all and
    f = final_fraction:

        (t + 1 / u) / w                       before step w
        f + (1 - f) (1 - x)                   linear, x = (t - w) / (n - w), at most 1
        f + (1 - f) (1 + cos(pi x)) / 2       cosine (arXiv 1608.03983, eq. 5)
    """
    check_value("step", step, CountOrZero)
    if step < config.num_warmup_steps:
        return (step * num_updates + update + 1) / (num_updates * config.num_warmup_steps)
    if config.num_steps is None:
        return 1.0
    done = (step + update / num_updates - config.num_warmup_steps) / (
        config.num_steps - config.num_warmup_steps
    )
    done = min(1.0, done)
    left = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.final_fraction + (1 - config.final_fraction) * left


def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> float:
    """Shorten the gradient to a norm over all parameters, and return the norm it had.

    max_norm: None changes nothing. Nor does a norm that is not finite: the caller drops it.
    """
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [p.grad for p in with_gradient if p.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if max_norm is not None and bool(norm.isfinite()):
        torch.nn.utils.clip_grads_with_norm_(with_gradient, max_norm, norm)
    return float(norm)


def _new_state(part: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return what an optimizer keeps of a parameter, before its first step."""
    if isinstance(part, torch.optim.Muon):
        return {"momentum_buffer": torch.zeros_like(parameter)}
    make = getattr(part, "make_moment", lambda parameter, is_signed: torch.zeros_like(parameter))
    return {
        "step": torch.zeros(()),
        "exp_avg": make(parameter, True),
        "exp_avg_sq": make(parameter, False),
    }


def _plain(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield a parameter's state as plain tensors: codes and scales of what is in 8 bits."""
    for entry, value in state.items():
        codes = getattr(value, "codes", None)
        if codes is None:
            yield entry, value
        else:
            yield f"{entry}_codes", codes
            yield f"{entry}_scale", getattr(value, "scale")  # noqa: B009  # a tensor has none

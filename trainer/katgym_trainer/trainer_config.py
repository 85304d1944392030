"""Every setting of a `Trainer`, checked when it is made.

Not here: what algorithms are made of (`algorithms.py`), options of losses (`losses/`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katgym.errors import UnknownNameError, UsageError, unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Settings of a `Trainer`; `UsageError` for a value, or a pair of values, that cannot work.

    Example:
        TrainerConfig(learning_rate=2e-6, dtype="bfloat16", schedule="cosine", num_steps=500)
    """

    max_tokens: int = 8192
    """Packed tokens of a forest: what is left of its rows when shared prefixes are kept once."""
    max_pairs: int | None = None
    """(query, key) pairs that attention sees in a forest; None: as many as there are."""
    max_trained: int | None = None
    """Trained tokens of a forest's rows; None: as many as there are."""
    backend: str = "auto"
    """Of `katgym_kernels.tree_attention`."""
    temperature: float = 1.0
    """That the policy sampled with; divides the logits."""
    optimizer: str = "adamw"
    """`adamw`, or `muon` for hidden matrices with AdamW for all else."""
    learning_rate: float = 1e-6
    """The highest one; the schedule multiplies it."""
    weight_decay: float = 0.0
    """Taken off matrices each update, times the learning rate; norms and biases have none."""
    beta1: float = 0.9
    """AdamW's decay of the mean gradient."""
    beta2: float = 0.95
    """AdamW's decay of the mean squared gradient."""
    epsilon: float = 1e-8
    """What AdamW adds to the root of the mean squared gradient."""
    momentum: float = 0.95
    """Muon's."""
    schedule: str = "constant"
    """`constant`, `linear` or `cosine`: how the learning rate falls after the warm-up."""
    num_warmup_steps: int = 0
    """Steps in which the learning rate rises to its highest; the last of them has it."""
    num_steps: int | None = None
    """Steps of the whole training, which `linear` and `cosine` need."""
    final_fraction: float = 0.0
    """Share of the highest learning rate that is left after `num_steps`."""
    max_grad_norm: float | None = 1.0
    """The gradient is shortened to this norm over all parameters; None leaves it."""
    dtype: str = "float32"
    """Of the model's weights. `bfloat16` keeps float32 masters of those that are trained."""
    lora_rank: int = 0
    """Of low-rank adapters, 16 to 64 as a rule; 0 trains all weights."""
    lora_alpha: float | None = None
    """Adapters count lora_alpha / lora_rank times; None: twice lora_rank."""
    lora_targets: Sequence[str] | None = None
    """Ends of the names of linear layers that get adapters; None: all but the head."""
    should_checkpoint_activations: bool = False
    """Whether layers are computed again in the backward: less memory, about a third more time."""
    should_compile: bool = False
    """Whether `torch.compile` fuses what the decoder's layers do around attention."""
    num_updates: int = 1
    """Updates of a step, each on some of its groups; all after the first are off-policy."""
    loss: Mapping[str, Any] = field(default_factory=dict)
    """Options of the algorithm's loss, such as `clip_high`."""
    advantage: str | None = None
    """Of `katgym_trainer.group_advantages`; None: the algorithm's own."""
    advantage_scaling: str = "none"
    """`entropy`: by each rollout's entropy in its group (`entropy_scaled`); `pass_rate`: by each
    group's share of rewards (`pass_rate_scaled`), for `step` alone; `none`."""
    scaling_power: float = 1.0
    """Of the relative entropy."""
    max_scale: float = 2.0
    """Most that a scale multiplies or divides an advantage by, before sums are restored."""
    pruning: str = "none"
    """`best` or `sample`: rows are cut to the branches with the most entropy (`prune`); `none`."""
    max_unique_tokens: int | None = None
    """Unique tokens that pruning leaves of a step's rows."""
    should_share_prefixes: bool = True
    """Whether what rows begin with alike is computed once; False: every row whole, with the same
    gradients in more time, to compare with."""
    should_split: bool = False
    """Whether rows of more than max_tokens run in parts, instead of being refused."""
    logprob_cache_mib: int = 256
    """Memory for log-probs of a reference and of the trainer before a step, in MiB."""
    logprob_cache_folder: str | None = None
    """Where they are kept beyond memory, for later runs too; None: nowhere."""
    seed: int = 0
    """Of adapters' first weights, of the order of updates and of pruning's draws."""

    def __post_init__(self) -> None:
        if isinstance(self.lora_targets, list):  # as JSON has it
            object.__setattr__(self, "lora_targets", tuple(self.lora_targets))
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if not rule.allows(value):
                raise UsageError(f"{name} is {rule.text}, got {value!r}")
        object.__setattr__(self, "loss", dict(self.loss))
        self._check_schedule()
        self._check_what_applies()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TrainerConfig:
        """Return the config of some options by name, as `to_json` gives them.

        Raises `UnknownNameError` with the nearest name for one that there is none of.
        """
        known = [item.name for item in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise UnknownNameError(unknown_name("trainer option", name, known))
        return cls(**options)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `of` reads."""
        found = dataclasses.asdict(self)
        if self.lora_targets is not None:
            found["lora_targets"] = list(self.lora_targets)
        return found

    def _check_schedule(self) -> None:
        if self.schedule == "constant":
            return
        if self.num_steps is None:
            raise UsageError(f"schedule {self.schedule!r} needs num_steps, got None")
        if self.num_steps <= self.num_warmup_steps:
            raise UsageError(
                f"num_steps is more than num_warmup_steps ({self.num_warmup_steps!r}), got"
                f" {self.num_steps!r}"
            )

    def _check_what_applies(self) -> None:
        """Raise for what is set and would change nothing."""
        if self.pruning != "none" and self.max_unique_tokens is None:
            raise UsageError(f"pruning={self.pruning!r} needs max_unique_tokens, got None")
        defaults = {item.name: item.default for item in dataclasses.fields(self)}
        for names, needed, does_apply in (
            (("momentum",), "optimizer='muon'", self.optimizer == "muon"),
            (
                ("num_steps", "final_fraction"),
                "schedule='linear' or 'cosine'",
                self.schedule != "constant",
            ),
            (("lora_alpha", "lora_targets"), "lora_rank >= 1", self.lora_rank > 0),
            (
                ("max_scale",),
                "advantage_scaling='entropy' or 'pass_rate'",
                self.advantage_scaling != "none",
            ),
            (
                ("scaling_power",),
                "advantage_scaling='entropy'",
                self.advantage_scaling == "entropy",
            ),
            (("max_unique_tokens",), "pruning='best' or 'sample'", self.pruning != "none"),
        ):
            for name in names:
                value = getattr(self, name)
                if not does_apply and value != defaults[name]:
                    raise UsageError(f"{name}={value!r} changes nothing; it needs {needed}")


@dataclass(frozen=True, slots=True)
class _Rule:
    """What one setting may be."""

    text: str
    allows: Callable[[Any], bool]

    def or_none(self) -> _Rule:
        return _Rule(f"{self.text}, or None", lambda value: value is None or self.allows(value))


def _integer(least: int) -> _Rule:
    def allows(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return _Rule(f"an int >= {least}", allows)


def _number(text: str, is_inside: Callable[[float], bool]) -> _Rule:
    def allows(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return math.isfinite(value) and is_inside(value)

    return _Rule(f"a number {text}", allows)


def _choice(*names: str) -> _Rule:
    return _Rule(
        "one of " + ", ".join(map(repr, names)), lambda v: isinstance(v, str) and v in names
    )


_TEXT = _Rule("a name", lambda value: isinstance(value, str) and bool(value))
_FLAG = _Rule("True or False", lambda value: isinstance(value, bool))
_POSITIVE = _number("> 0", lambda value: value > 0)
_NOT_NEGATIVE = _number(">= 0", lambda value: value >= 0)
_BELOW_ONE = _number(">= 0 and < 1", lambda value: 0 <= value < 1)
_SHARE = _number("from 0 to 1", lambda value: 0 <= value <= 1)
_OPTIONS = _Rule(
    "a mapping of options by name",
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
)
_NAMES = _Rule(
    "a list of names",
    lambda value: isinstance(value, tuple) and bool(value) and all(map(_TEXT.allows, value)),
)
_RULES = {
    "max_tokens": _integer(1),
    "max_pairs": _integer(1).or_none(),
    "max_trained": _integer(1).or_none(),
    "backend": _TEXT,
    "temperature": _POSITIVE,
    "optimizer": _choice("adamw", "muon"),
    "learning_rate": _POSITIVE,
    "weight_decay": _NOT_NEGATIVE,
    "beta1": _BELOW_ONE,
    "beta2": _BELOW_ONE,
    "epsilon": _POSITIVE,
    "momentum": _BELOW_ONE,
    "schedule": _choice("constant", "linear", "cosine"),
    "num_warmup_steps": _integer(0),
    "num_steps": _integer(1).or_none(),
    "final_fraction": _SHARE,
    "max_grad_norm": _POSITIVE.or_none(),
    "dtype": _choice("float32", "bfloat16"),
    "lora_rank": _integer(0),
    "lora_alpha": _POSITIVE.or_none(),
    "lora_targets": _NAMES.or_none(),
    "should_checkpoint_activations": _FLAG,
    "should_compile": _FLAG,
    "num_updates": _integer(1),
    "loss": _OPTIONS,
    "advantage": _TEXT.or_none(),
    "advantage_scaling": _choice("none", "entropy", "pass_rate"),
    "scaling_power": _NOT_NEGATIVE,
    "max_scale": _number(">= 1", lambda value: value >= 1),
    "pruning": _choice("none", "best", "sample"),
    "max_unique_tokens": _integer(1).or_none(),
    "should_share_prefixes": _FLAG,
    "should_split": _FLAG,
    "logprob_cache_mib": _integer(1),
    "logprob_cache_folder": _TEXT.or_none(),
    "seed": _integer(0),
}

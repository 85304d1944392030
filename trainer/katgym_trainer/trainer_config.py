"""Every setting of a `Trainer`, checked when it is made.

Not here: what algorithms are made of (`algorithms.py`), options of losses (`losses/`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from katgym.errors import UsageError, check_name
from katgym_trainer.config.rules import (
    AtLeastOne,
    BelowOne,
    Count,
    CountOrZero,
    Name,
    Names,
    NotNegative,
    Positive,
    Share,
    changed_fields,
    check_fields,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Settings of a `Trainer`; `UsageError` for a value, or a pair of values, that cannot work.

    Example:
        TrainerConfig(learning_rate=2e-6, dtype="bfloat16", schedule="cosine", num_steps=500)
    """

    max_tokens: Count = 8192
    """Packed tokens of a forest: what is left of its rows when shared prefixes are kept once."""
    max_pairs: Count | None = None
    """(query, key) pairs that attention sees in a forest; None: as many as there are."""
    max_trained: Count | None = None
    """Trained tokens of a forest's rows; None: as many as there are."""
    backend: Name = "auto"
    """Of `katgym_kernels.tree_attention`."""
    temperature: Positive = 1.0
    """That the policy sampled with; divides the logits."""
    optimizer: Literal["adamw", "adamw_8bit", "muon"] = "adamw"
    """`adamw`; `adamw_8bit`, whose moments take 2 bytes a weight and not 8, for models that fill a
    GPU (`pip install 'katgym[low-bit]'`); or `muon` for hidden matrices with AdamW for all else."""
    learning_rate: Positive = 1e-6
    """The highest one; the schedule multiplies it."""
    weight_decay: NotNegative = 0.0
    """Taken off matrices each update, times the learning rate; norms and biases have none."""
    beta1: BelowOne = 0.9
    """AdamW's decay of the mean gradient."""
    beta2: BelowOne = 0.95
    """AdamW's decay of the mean squared gradient."""
    epsilon: Positive = 1e-8
    """What AdamW adds to the root of the mean squared gradient."""
    momentum: BelowOne = 0.95
    """Muon's."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """`constant`, `linear` or `cosine`: how the learning rate falls after the warm-up."""
    num_warmup_steps: CountOrZero = 0
    """Steps in which the learning rate rises to its highest; the last of them has it."""
    num_steps: Count | None = None
    """Steps of the whole training, which `linear` and `cosine` need."""
    final_fraction: Share = 0.0
    """Share of the highest learning rate that is left after `num_steps`."""
    max_grad_norm: Positive | None = 1.0
    """The gradient is shortened to this norm over all parameters; None leaves it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the model's weights. `bfloat16` keeps float32 masters of those that are trained."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Of updates into bfloat16 weights. `stochastic` rounds up or down at random, so that the mean
    is right, and keeps no masters, which saves 4 bytes a weight of models that fill a GPU."""
    lora_rank: CountOrZero = 0
    """Of low-rank adapters, 16 to 64 as a rule; 0 trains all weights."""
    lora_alpha: Positive | None = None
    """Adapters count lora_alpha / lora_rank times; None: twice lora_rank."""
    lora_targets: Names | None = None
    """Ends of the names of linear layers that get adapters; None: all but the head."""
    should_checkpoint_activations: bool = False
    """Whether layers are computed again in the backward: less memory, about a third more time."""
    should_offload_activations: bool = False
    """Whether the inputs of layers that are computed again wait for that in the CPU's memory, for
    rows so long that a GPU has no room for them."""
    should_compile: bool = False
    """Whether `torch.compile` fuses what the decoder's layers do around attention."""
    num_updates: Count = 1
    """Updates of a step, each on some of its groups and with the schedule's learning rate of its
    own; all after the first are off-policy."""
    max_nonfinite_updates: Count = 3
    """Updates in a row, left out as their gradient is not finite, after which training ends with
    an error."""
    loss: Mapping[str, Any] = field(default_factory=dict)
    """Options of the algorithm's loss, such as `clip_high`."""
    advantage: Name | None = None
    """Of `katgym_trainer.group_advantages`; None: the algorithm's own."""
    advantage_scaling: Literal["none", "entropy", "pass_rate"] = "none"
    """`entropy`: by each rollout's entropy in its group (`entropy_scaled`); `pass_rate`: by each
    group's share of rewards (`pass_rate_scaled`), for `step` alone; `none`."""
    scaling_power: NotNegative = 1.0
    """Of the relative entropy."""
    max_scale: AtLeastOne = 2.0
    """Most that a scale multiplies or divides an advantage by, before sums are restored."""
    pruning: Literal["none", "best", "sample"] = "none"
    """`best` or `sample`: rows are cut to the branches with the most entropy (`prune`); `none`."""
    max_unique_tokens: Count | None = None
    """Unique tokens that pruning leaves of a step's rows."""
    should_share_prefixes: bool = True
    """Whether what rows begin with alike is computed once; False: every row whole, with the same
    gradients in more time, to compare with."""
    should_split: bool = False
    """Whether rows of more than max_tokens run in parts, instead of being refused."""
    logprob_cache_mib: Count = 256
    """Memory for log-probs of a reference and of the trainer before a step, in MiB."""
    logprob_cache_folder: Name | None = None
    """Where they are kept beyond memory, for later runs too; None: nowhere."""
    seed: CountOrZero = 0
    """Of adapters' first weights, of the order of updates and of pruning's draws."""

    def __post_init__(self) -> None:
        if isinstance(self.lora_targets, list):  # as JSON has it
            object.__setattr__(self, "lora_targets", tuple(self.lora_targets))
        check_fields(self, UsageError)
        object.__setattr__(self, "loss", dict(self.loss))
        if self.schedule != "constant" and self.num_steps is None:
            raise UsageError(f"schedule {self.schedule!r} needs num_steps, got None")
        if self.num_steps is not None and self.num_steps <= self.num_warmup_steps:
            raise UsageError(
                f"num_steps is more than num_warmup_steps ({self.num_warmup_steps!r}), got"
                f" {self.num_steps!r}"
            )
        if self.pruning != "none" and self.max_unique_tokens is None:
            raise UsageError(f"pruning={self.pruning!r} needs max_unique_tokens, got None")
        if self.should_offload_activations and self.should_compile:
            raise UsageError(
                "should_offload_activations moves what layers keep, and should_compile compiles"
                " layers with what they keep; choose one"
            )
        self._check_what_applies()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TrainerConfig:
        """Return the config of some options by name, as `to_json` gives them.

        Raises `UnknownNameError` with the nearest name for one that there is none of.
        """
        known = [item.name for item in dataclasses.fields(cls)]
        for name in options:
            check_name("trainer option", name, known)
        return cls(**options)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `of` reads."""
        found = dataclasses.asdict(self)
        if self.lora_targets is not None:
            found["lora_targets"] = list(self.lora_targets)
        return found

    def _check_what_applies(self) -> None:
        """Raise for what is set and would change nothing."""
        is_scaled = self.advantage_scaling != "none"
        for names, needed, does_apply in (
            (("momentum",), "optimizer='muon'", self.optimizer == "muon"),
            (("rounding",), "dtype='bfloat16'", self.dtype == "bfloat16"),
            (
                ("should_offload_activations",),
                "should_checkpoint_activations=True",
                self.should_checkpoint_activations,
            ),
            (
                ("num_steps", "final_fraction"),
                "schedule='linear' or 'cosine'",
                self.schedule != "constant",
            ),
            (("lora_alpha", "lora_targets"), "lora_rank >= 1", self.lora_rank > 0),
            (("max_scale",), "advantage_scaling='entropy' or 'pass_rate'", is_scaled),
            (
                ("scaling_power",),
                "advantage_scaling='entropy'",
                self.advantage_scaling == "entropy",
            ),
            (("max_unique_tokens",), "pruning='best' or 'sample'", self.pruning != "none"),
        ):
            if not does_apply and (changed := changed_fields(self, names)):
                value = getattr(self, changed[0])
                raise UsageError(f"{changed[0]}={value!r} changes nothing; it needs {needed}")

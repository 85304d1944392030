"""Configuration that every kind of run has: model, checkpoints, trackers, the trainer's options.

A run's file has a table for each field of its config; [train] has the keys of `loop` and of the
trainer. Not here: the kinds of runs (`train_run_config.py`, `rl_config.py`), the trainer's options
(`trainer_config.py`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from katgym.cluster.cluster_config import ClusterConfig
from katgym.config.sections import (
    check_keys,
    default_of,
    field_types,
    names,
    section,
    table,
)
from katgym.config.toml_files import read_toml
from katgym.errors import UsageError
from katgym_trainer.config.rules import Count, CountOrZero, Positive, check_fields
from katgym_trainer.ranks import TIMEOUT_S
from katgym_trainer.trainer_config import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Section [model]."""

    path: str
    """Folder, hub id, or `smollm2`."""
    tokenizer: str = ""
    """Folder or hub id; "" is the model's."""
    renderer: str = ""
    """How messages become tokens, as in `hf:MODEL?renderer=NAME`; "" chooses by the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Section [checkpoint]."""

    every_steps: Count = 100
    """Steps between two. The last step always makes one, and so does Ctrl-C."""
    max_checkpoints: Count = 2
    """The newest that are kept."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackConfig:
    """One of sections [[track]]."""

    name: str
    """Of a tracker: `tensorboard`, `trackio`, `wandb`, or a plugin's."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The section's other keys, which the tracker takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoopConfig:
    """Keys of section [train] that are not the trainer's."""

    num_steps: Count | None = None
    """Optimizer steps of the run."""
    seed: CountOrZero = 0
    """Of all that is drawn; the trainer's too."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksConfig:
    """Section [trainer.ranks]: the processes that torchrun starts, or [cluster] trainer_ranks."""

    timeout_s: Positive = TIMEOUT_S
    """Wall seconds after which a rank that does not answer ends the run, with its number."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole run, of any kind."""

    decided: ClassVar[frozenset[str]] = frozenset()
    """Options of the trainer that other keys of the file decide."""

    model: ModelConfig
    loop: RunLoopConfig
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """The other keys of [train]: options of `TrainerConfig`."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: tuple[TrackConfig, ...] = ()
    ranks: RanksConfig = field(default_factory=RanksConfig)
    """[trainer.ranks]; may change in a continued run."""
    cluster: ClusterConfig | None = None
    """None: all is on this machine, and nothing of Ray is imported; may change, too."""

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        num_steps: int | None = None,
        settings: Sequence[str] = (),
        **given: Any,
    ) -> Self:
        """Return the run that a TOML file describes, with settings in place of the file's: `of`."""
        return cls.of(read_toml(path, settings), name=path.name, num_steps=num_steps, **given)

    @classmethod
    def of(
        cls, raw: Mapping[str, Any], *, name: str, num_steps: int | None = None, **given: Any
    ) -> Self:
        """Return the run that a file's content describes; `UsageError` says what is wrong in it.

        name: what errors call the file. num_steps: in place of the file's, and of its epochs.
        given: fields that the file does not tell.
        """
        types, where = field_types(cls), f"{name} [train]"
        check_keys(raw, cls.sections(given), f"section of {name}")
        train = dict(table(raw.get("train", {}), where))
        if num_steps is not None:
            train["num_steps"] = num_steps
            train.pop("num_epochs", None)
        of_loop = names(types["loop"])
        check_keys(train, [*of_loop, *cls.trainer_options()], f"key of {where}")
        loop = {key: train.pop(key) for key in of_loop if key in train}
        values = {**given, "loop": section(types["loop"], loop, where), "trainer": train}
        for item in dataclasses.fields(cls):
            if item.name in raw and item.name != "trainer":
                values[item.name] = _read(types[item.name], raw[item.name], name, item.name)
            elif item.name not in values and default_of(item) is dataclasses.MISSING:
                raise UsageError(f"{name} has no section [{item.name}]")
        launch = table(raw.get("trainer", {}), f"{name} [trainer]")
        check_keys(launch, ["ranks"], f"section of {name} [trainer]")
        if "ranks" in launch:
            values["ranks"] = section(RanksConfig, launch["ranks"], f"{name} [trainer.ranks]")
        config = cls(**values)
        try:
            config.check()
        except ValueError as e:
            raise UsageError(f"{name} {e}") from e
        return config

    @classmethod
    def sections(cls, given: Mapping[str, Any]) -> list[str]:
        """Return the names of the tables that a file may have."""
        return ["train", *({*names(cls)} - {"loop", "ranks", *given})]

    @classmethod
    def trainer_options(cls) -> list[str]:
        """Return the options of the trainer that [train] may have."""
        return [key for key in names(TrainerConfig) if key not in cls.decided]

    @property
    def rollout_workers(self) -> int:
        """Of [cluster]; 0: the run itself plays what it plays."""
        return 0 if self.cluster is None else self.cluster.rollout_workers

    def check(self) -> None:
        """Raise `ValueError`, beginning with the section, for what does not go together."""

    def identity(self) -> dict[str, Any]:
        """Return what has to be equal for a run to be continued, as plain JSON values."""
        raise NotImplementedError

    def make_trainer_config(self, num_steps: int, **decided: Any) -> TrainerConfig:
        """Return the trainer's settings; a learning rate that falls does so over `num_steps`.

        Raises `ValueError` for options that are not known or do not go together.
        """
        options = {**self.trainer, **decided, "seed": self.loop.seed}
        if options.get("schedule", "constant") != "constant":
            options["num_steps"] = num_steps
        return TrainerConfig.of(options)


def _read(hint: Any, raw: Any, name: str, key: str) -> Any:
    """Return a field's value of its table, or of its array of tables."""
    if typing.get_origin(hint) is not tuple:
        cls = next(part for part in (*typing.get_args(hint), hint) if part is not type(None))
        return section(cls, raw, f"{name} [{key}]")
    (cls, _), where = typing.get_args(hint), f"{name} [[{key}]]"
    if not isinstance(raw, list):
        raise UsageError(f"{where} is a list of tables, each begun by [[{key}]], got {raw!r}")
    found = []
    for number, item in enumerate(raw):
        entry = table(item, f"{where} {number}")
        if cls is TrackConfig:
            options = {option: value for option, value in entry.items() if option != "name"}
            entry = {
                **({"name": entry["name"]} if "name" in entry else {}),
                "options": options,
            }
        found.append(section(cls, entry, f"{where} {number}"))
    return tuple(found)


def leave_out(identity: dict[str, Any], *paths: str) -> dict[str, Any]:
    """Delete what may change in a continued run, by `section.key`; return the rest."""
    for path in paths:
        name, _, key = path.partition(".")
        del identity[name][key]
    return identity

"""Registers the trainer's commands and trackers; imports none of them, nor torch.

Not here: the command (`cli/`), the trackers (`trackers/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterNamed, hookimpl


@hookimpl
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register `katgym train`, `cluster`, `demo train` and what answers `doctor --model`."""
    register(
        "train",
        "katgym_trainer.cli.train_command:add_arguments",
        description="train a model on recorded rollouts, and draw what a run measured",
    )
    register(
        "cluster",
        "katgym_trainer.cli.cluster.cluster_command:add_arguments",
        description="predict a run on many GPUs before it begins",
    )
    register(
        "doctor model",
        "katgym_trainer.cli.doctor_model:print_fits",
        description="katgym doctor --model: what of a model's training fits a card",
    )
    register(
        "demo train",
        "katgym_trainer.cli.demo.train_command:add_arguments",
        description="new models learn to call tools, then to call them in parallel",
    )


@hookimpl
def katgym_register_trackers(register: RegisterNamed) -> None:
    """Register every built-in tracker."""
    where = "katgym_trainer.trackers"
    register(
        "tensorboard",
        f"{where}.tensorboard_tracker:TensorBoardTracker",
        description="event files in the run's folder",
    )
    register(
        "trackio",
        f"{where}.trackio_tracker:TrackioTracker",
        description="a database on this machine, or a Hugging Face Space",
    )
    register(
        "wandb",
        f"{where}.wandb_tracker:WandbTracker",
        description="Weights & Biases, also offline",
    )

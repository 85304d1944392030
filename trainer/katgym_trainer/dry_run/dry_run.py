"""Dry run of training: the first prompt, memory, steps and files; nothing is written.

    for stage in dry_run(config, Path("runs/rl")):
        print("\\n".join(stage.lines()))

Envs are made and tokenizer and shape of the model are read, its weights are not. Not here: the
memory's formulas (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from katgym.errors import UsageError
from katgym.evaluation.plan import Plan
from katgym.play.agent_loop import run_rollout
from katgym.play.limits import Limits
from katgym.plugins.env_ref import EnvRef
from katgym.policies.model_source import model_source
from katgym.system.sync import run_sync
from katgym_trainer.config.pipeline_config import PipelineConfig
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.train_run_config import TrainRunConfig
from katgym_trainer.dry_run.card_prediction import CardPrediction, predict_step
from katgym_trainer.dry_run.memory import (
    CUDA,
    ModelShape,
    device_memory,
    policy_memory,
    trainer_memory,
)
from katgym_trainer.fake_card.cards import name_of
from katgym_trainer.rl.curriculum import Curriculum
from katgym_trainer.rl.held_out import HeldOut
from katgym_trainer.rl.rl_checks import check_prompts, check_store, first_prompt
from katgym_trainer.rollouts.rollout_files import read_rollouts
from katgym_trainer.rollouts.supervised_rows import supervised_rows
from katgym_trainer.rollouts.teacher_tokens import tokenize_rollout
from katgym_trainer.runs.model_loading import load_renderer
from katgym_trainer.runs.played_sources import collect_plan, oracle_plan
from katgym_trainer.runs.training_data import check_sources
from katgym_trainer.trainer_config import TrainerConfig

_GIB = 2**30
_MAX_TEXT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a model reads first, or a whole rollout that it learns from."""

    title: str
    token_ids: Sequence[int]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What one run, or one stage of it, would do.

    Example:
        DryRun(title="rl in runs/rl", prompt=Prompt(...), parameters=721_984, device="CPU",
               device_bytes=16_000_000_000, memory={"weights": 2_887_936},
               steps=("24 steps of 4 groups of 8 rollouts",), writes=("config.toml, lock.json",))
    """

    title: str
    prompt: Prompt | None
    """None: others play, and no prompt is known."""
    parameters: int
    device: str
    device_bytes: int
    memory: Mapping[str, int]
    """What the trainer's process needs, in bytes, by what for; an estimate."""
    steps: Sequence[str]
    writes: Sequence[str]
    prediction: CardPrediction | None = None
    """Of a card's step; None: no card was named, and none that is known is here."""

    def lines(self) -> list[str]:
        """Return all of it as lines of text."""
        found = [self.title, ""]
        if (prompt := self.prompt) is not None:
            text = prompt.text if len(prompt.text) <= _MAX_TEXT else f"{prompt.text[:_MAX_TEXT]}..."
            ids = " ".join(map(str, prompt.token_ids[:24]))
            more = " ..." if len(prompt.token_ids) > 24 else ""
            found += [f"{prompt.title}, {len(prompt.token_ids)} tokens:", text]
            found += [f"token ids: {ids}{more}", ""]
        needed = sum(self.memory.values())
        fits = "fits" if needed <= 0.9 * self.device_bytes else "MAY NOT FIT"
        found.append(f"model: {self.parameters:,} parameters")
        found.append(
            f"memory of the trainer's process, estimated: {needed / _GIB:.2f} GiB;"
            f" {self.device} has {self.device_bytes / _GIB:.1f} GiB: {fits}"
        )
        found += [f"  {size / _GIB:8.3f} GiB  {name}" for name, size in self.memory.items()]
        if self.prediction is not None:
            found.append(self.prediction.line())
        found += ["steps:", *(f"  {line}" for line in self.steps)]
        return [*found, "would write:", *(f"  {line}" for line in self.writes)]


def dry_run(
    config: RlConfig | TrainRunConfig | PipelineConfig, folder: Path, *, card: str | None = None
) -> list[DryRun]:
    """Return what each stage of a run in a folder would do; `UsageError` for what cannot run.

    card: for which a step is predicted; None: the one that is here, if it is known.
    """
    if isinstance(config, PipelineConfig):
        return [
            stage
            for number, each in enumerate(config.stages, 1)
            for stage in dry_run(each.config, folder / f"{number:02d}-{each.name}", card=card)
        ]
    if card is None and torch.cuda.is_available():
        card = name_of(torch.cuda.get_device_name())
    if isinstance(config, RlConfig):
        return [_rl(config, folder, card)]
    return [_recorded(config, folder, card)]


def _rl(config: RlConfig, folder: Path, card: str | None) -> DryRun:
    check_store(config)
    renderer, rollouts, prompt = load_renderer(config.model), config.rollouts, None
    if not rollouts.store:
        lessons = Curriculum(config.envs, rollouts, seed=config.loop.seed).first_lessons()
        check_prompts(config, renderer, lessons)
        env_config, env, task_id = lessons[0]
        ids = run_sync(first_prompt(env, env_config.split, task_id, renderer, rollouts.limits))
        prompt = _prompt(f"first prompt of {env_config.id}, task {task_id}", ids, config)
    num_steps = config.loop.num_steps
    num = num_steps * rollouts.num_groups * rollouts.group_size
    steps = [
        f"{num_steps} steps of {rollouts.num_groups} groups of {rollouts.group_size}: {num:,}"
        f" rollouts of at most {config.policy.max_context_tokens:,} tokens"
    ]
    if (every := config.evaluate.every_steps) != 0:
        times, each = 1 + -(-num_steps // every), len(HeldOut(config))
        steps.append(f"{times} evaluations of {each} rollouts, before and every {every} steps")
    writes = ["eval.jsonl: evaluations", "rollouts/: what was played"]
    return _told("rl", config, config.trainer_config(), folder, card, prompt, steps, writes)


def _recorded(config: TrainRunConfig, folder: Path, card: str | None) -> DryRun:
    check_sources(config)
    renderer = load_renderer(config.model)
    sources = [*config.data.teachers, *config.data.rollouts]
    num = sum(1 for path in sources for _ in read_rollouts(path))
    plans, oracle, collect = [], config.data.oracle, config.data.collect
    if oracle is not None:
        plans += [Plan.of(oracle_plan(oracle, envs)) for envs in oracle.runs()]
    writes = ["oracle/: rollouts of the envs' own solutions"] if plans else []
    if collect is not None:
        plans.append(Plan.of(collect_plan(collect, config.model)))
        writes.append("collected/: what the model plays first")
    num += sum(map(len, plans))
    per_epoch = -(-num // config.loop.batch_rollouts)
    num_steps = config.loop.total_steps(per_epoch)
    steps = [
        f"{num_steps} steps of {config.loop.batch_rollouts} rollouts, {per_epoch} an epoch, of at"
        f" most {num:,} rollouts (those without reward are left out)"
    ]
    trainer, kind = config.make_trainer_config(num_steps), str(config.kind)
    prompt = _first_learned(config, sources, plans, renderer)
    return _told(kind, config, trainer, folder, card, prompt, steps, writes)


def _first_learned(
    config: TrainRunConfig, sources: Sequence[str], plans: Sequence[Plan], renderer: Any
) -> Prompt:
    """Return the first rollout that is learned from, or the first prompt where a model plays."""
    first = next((rollout for path in sources for rollout in read_rollouts(path)), None)
    if first is None:
        request, oracle = next(plans[0].requests()), config.data.oracle
        env = request.env.make() if isinstance(request.env, EnvRef) else request.env
        task_id, split = str(request.task_id), str(request.split)
        if oracle is None:
            ids = run_sync(first_prompt(env, split, task_id, renderer, Limits()))
            return _prompt(f"first prompt, task {task_id}", ids, config)
        playing = run_rollout(env, oracle.policy, seed=request.seed, task_id=task_id, split=split)
        first = run_sync(playing)
    is_sampled = not config.data.teachers and bool(config.data.rollouts)
    if not (is_sampled and first.has_tokens):
        first = tokenize_rollout(first, renderer)
    rows = supervised_rows([first])
    if not rows:
        raise UsageError(f"the first rollout, of task {first.task_id!r}, has no token to train")
    title = (
        f"first rollout of {first.env_id}, task {first.task_id}, {rows[0].num_trained} of its"
        " tokens trained"
    )
    return _prompt(title, rows[0].token_ids.tolist(), config)


def _prompt(title: str, ids: list[int], config: RlConfig | TrainRunConfig) -> Prompt:
    path = config.model.tokenizer or config.model.path
    tokenizer: Any = AutoTokenizer.from_pretrained(model_source(path))
    return Prompt(title=title, token_ids=ids, text=tokenizer.decode(ids))


def _told(
    kind: str,
    config: RlConfig | TrainRunConfig,
    trainer: TrainerConfig,
    folder: Path,
    card: str | None,
    prompt: Prompt | None,
    steps: Sequence[str],
    writes: Sequence[str],
) -> DryRun:
    shape = ModelShape.of(config.model.path)
    memory = trainer_memory(shape, trainer)
    if isinstance(config, RlConfig):
        memory |= policy_memory(shape, config)
    device, size = device_memory()
    if device != "CPU":
        memory["CUDA"] = CUDA
    prediction = None
    if card is not None:
        algorithm = config.loop.algorithm if isinstance(config, RlConfig) else "sft"
        num_cards = 1 if config.cluster is None else max(1, config.cluster.trainer_ranks)
        prediction = predict_step(
            config.model.path, algorithm, trainer, card=card, num_cards=num_cards
        )
    every, most = config.checkpoint.every_steps, config.checkpoint.max_checkpoints
    state = "is there, and would go on" if (folder / "lock.json").exists() else "new"
    return DryRun(
        title=f"{kind} in {folder} ({state}): a dry run, nothing is written",
        prompt=prompt,
        parameters=shape.parameters,
        device=device,
        device_bytes=size,
        memory=memory,
        steps=steps,
        writes=[
            "config.toml, lock.json, train.log, metrics.jsonl, plots/",
            *writes,
            f"checkpoints/: every {every} steps, the newest {most} kept",
            "model/: the trained weights, with tokenizer",
        ],
        prediction=prediction,
    )

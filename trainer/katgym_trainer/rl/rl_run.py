"""One run of `katgym train rl`, from its configuration to a better model.

The loop is `RlRun.train`: groups of rollouts, an optimizer step, new weights for the policy. Not
here: which tasks (`task_source.py`), playing them ahead (`group_stream.py`), who samples
(`policy_hosts.py`), the step itself (`trainer.py`), the folder (`runs/run_folder.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from katgym.concurrency import DaemonThreads
from katgym.engine import EngineConfig, RolloutEngine
from katgym.errors import UsageError
from katgym_trainer import checkpoints
from katgym_trainer.atomic_folders import new_folder
from katgym_trainer.checkpoints import CheckpointError
from katgym_trainer.rl.best_model import BestModel
from katgym_trainer.rl.group_stream import GroupFeed, GroupStream, Taken
from katgym_trainer.rl.held_out import HeldOut
from katgym_trainer.rl.kept_rollouts import KeptRollouts
from katgym_trainer.rl.learning_watch import LearningWatch
from katgym_trainer.rl.policy_hosts import InProcessHost, PolicyHost
from katgym_trainer.rl.rl_checks import check_prompts, check_store
from katgym_trainer.rl.rl_config import RlConfig
from katgym_trainer.rl.rl_metrics import memory_metrics, rollout_metrics
from katgym_trainer.rl.server_pool import ServerPool
from katgym_trainer.rl.store_stream import StoreStream
from katgym_trainer.rl.task_source import TaskSource
from katgym_trainer.runs.freed_memory import keep_freed_memory
from katgym_trainer.runs.full_disk import full_disk_told
from katgym_trainer.runs.model_loading import LoadedModel, load_model
from katgym_trainer.runs.run_folder import RunFolder
from katgym_trainer.runs.run_log import logged_to
from katgym_trainer.runs.stop_signals import StopSignals
from katgym_trainer.runs.train_run import Observer, plot
from katgym_trainer.trackers.tracker import Tracker, make_tracker, tracking
from katgym_trainer.trainer import Trainer

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RlResult:
    """What a run left behind.

    Example:
        {"folder": "runs/tiny", "kind": "rl", "step": 100, "num_steps": 100, "resumed_from": 0,
         "metrics": {"rollout/reward": 0.8}, "best": {"step": 80, "success": 0.83},
         "model": "runs/tiny/model", "wall_s": 312.5, "exit_code": 0}
    """

    folder: str
    kind: str
    step: int
    """Optimizer steps that were taken in all."""
    num_steps: int
    """Those the run is to have."""
    resumed_from: int
    """Steps that were taken when this process began."""
    metrics: Mapping[str, float]
    """Of the last step; empty if this process took none."""
    best: Mapping[str, float] | None
    """Step and success rate of the best evaluated weights; None: nothing was evaluated."""
    model: str | None
    """Where the trained model lies; None: the run was stopped before its end."""
    wall_s: float
    exit_code: int
    """0, or 128 and the number of the signal that stopped the run."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def rl_run(
    config: RlConfig,
    path: Path,
    *,
    config_text: str,
    observer: Observer,
    is_resume: bool = False,
) -> RlResult:
    """Train in folder `path` until the last step or a signal; a run that was begun goes on.

    config_text: the file that `config` was read from, kept in the folder.
    is_resume: refuse a folder without a run to continue.

    Raises `UsageError` for what cannot be trained and a folder that cannot be used, `RlRunError`
    (`learning_watch.py`) when the policy learns nothing, `PolicyError` when it only fails, and
    `DiskFullError`, after which the same call goes on.
    """
    began_s = time.perf_counter()
    keep_freed_memory()
    trackers = [make_tracker(track, path) for track in config.track]
    with (
        full_disk_told(path),
        RunFolder.open(
            path, config_text=config_text, identity=config.identity(), is_resume=is_resume
        ) as folder,
        logged_to(path / "train.log"),
    ):
        run = RlRun(config, folder, observer)
        with contextlib.closing(run), StopSignals() as stop:
            with tracking(trackers, folder.lock):
                metrics = asyncio.run(run.train(trackers, stop))
            is_finished = run.finish()
        return RlResult(
            folder=str(path),
            kind="rl",
            step=run.trainer.num_steps,
            num_steps=config.loop.num_steps,
            resumed_from=run.first,
            metrics=metrics,
            best=run.best.found,
            model=str(folder.model) if is_finished else None,
            wall_s=time.perf_counter() - began_s,
            exit_code=0 if is_finished else stop.exit_code,
        )


class RlRun:
    """What one process of a run holds."""

    def __init__(self, config: RlConfig, folder: RunFolder, observer: Observer) -> None:
        """Make envs, model and trainer, and load the newest checkpoint if there is one."""
        self.config, self.folder, self.observer = config, folder, observer
        check_store(config)
        self.source = None
        if not config.rollouts.store:
            self.source = TaskSource(config.envs, config.rollouts, seed=config.loop.seed)
        self.held_out = HeldOut(config) if config.evaluate.every_steps else None
        observer.say(f"loading {config.model.path}")
        self.loaded = load_model(config.model, str(config.trainer.get("dtype", "float32")))
        if self.source is not None:
            check_prompts(config, self.loaded.renderer, self.source.first_lessons())
        self.trainer = _trainer(self.loaded, config)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="katgym-rl")
        self.best = BestModel(folder.path, config.evaluate.compared())
        self.feed_state: Mapping[str, Any] | None = None
        """What groups go on from, of a run that is continued."""
        self.watch = LearningWatch(config.loop.max_idle_steps)
        self.first = self._restore()
        """Steps that were taken before."""
        if self.first > config.loop.num_steps:
            raise UsageError(
                f"the run has taken {self.first} steps already, and was to take"
                f" {config.loop.num_steps}"
            )
        folder.open_metrics(self.first)
        assert self.trainer.algorithm.advantage is not None, "checked with the file"
        self.kept = KeptRollouts(folder.path, advantage=self.trainer.algorithm.advantage)

    async def train(self, trackers: Sequence[Tracker], stop: StopSignals) -> dict[str, float]:
        """Take the steps that are left, or until a signal; return the last one's metrics."""
        if self.trainer.num_steps == self.config.loop.num_steps:
            return {}
        metrics: dict[str, float] = {}
        asyncio.get_running_loop().set_default_executor(DaemonThreads())  # envs may hang in them
        host = await self._host()
        try:
            engine = RolloutEngine(
                host.policy,
                limits=self.config.rollouts.limits,
                sampling=self.config.policy.sampling,
                config=EngineConfig(max_retries=self.config.rollouts.max_retries),
            )
            async with self._feed(engine, host) as feed:
                await host.push(self.first)
                feed.advance(self.first)
                await self._evaluate(host, is_first=True)
                ended_s, _ = time.perf_counter(), feed.idle_s()
                saved: dict[str, float] = {}
                while self.trainer.num_steps < self.config.loop.num_steps:
                    # 1. Groups of rollouts, by weights at most max_staleness steps old.
                    taken = await feed.take(lambda: stop.received is not None)
                    if stop.received is not None:
                        break
                    metrics = rollout_metrics(taken, version=self.trainer.num_steps)
                    await self._in_thread(
                        self.kept.record, self.trainer.num_steps + 1, taken.groups
                    )

                    # 2. Advantages, pruning, packing, the optimizer.
                    async with host.training():
                        metrics |= await self._in_thread(self._step, taken)

                    # 3. New weights for the policy, which goes on with them.
                    step = self.trainer.num_steps
                    metrics |= await host.push(step)
                    feed.advance(step)

                    # 4. Held-out tasks, and what is kept.
                    metrics |= {**await self._evaluate(host), **saved}
                    total_s, ended_s = time.perf_counter() - ended_s, time.perf_counter()
                    metrics |= self._rates(taken, metrics, total_s, feed)
                    self._tell(metrics, trackers)
                    saved = await self._save(
                        feed
                    )  # after its metrics: a checkpoint has all of them
                    self.watch.check(step, metrics, taken)
                await self._save(feed, is_last=True)
        finally:
            await host.aclose()
        return metrics

    def finish(self) -> bool:
        """Write the model if no step is left, and the plots; return whether none is."""
        num_steps = self.config.loop.num_steps
        is_finished = self.trainer.num_steps >= num_steps
        is_trained = self.trainer.num_steps > self.first
        if is_finished and (is_trained or not self.folder.has_model_of(num_steps)):
            with new_folder(self.folder.model) as made:  # in place of a run's that is prolonged
                if self._keeps_best and self.best.found is not None:
                    shutil.copytree(self.best.path, made, dirs_exist_ok=True)
                else:
                    self.trainer.save_pretrained(made)
            self.folder.note_model(num_steps)
        if self.trainer.num_steps:
            plot(self.folder.path)
        return is_finished

    def close(self) -> None:
        """Close what the run holds open, once no thread of it works with that."""
        self._threads.shutdown()
        self.kept.close()
        self.trainer.close()

    async def _in_thread(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function in the run's own thread, which no env can keep busy."""
        call = functools.partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _feed(self, engine: RolloutEngine, host: PolicyHost) -> GroupFeed:
        """Return where groups come from: played here, or by others into a store."""
        feed: GroupFeed
        rollouts, known = self.config.rollouts, self.kept.after(self.first)
        if self.source is None:
            temperature = self.config.policy.temperature
            feed = StoreStream(
                rollouts,
                temperature=temperature,
                replace_sessions=host.replace_sessions,
                known=known,
            )
        else:
            feed = GroupStream(self.source, engine, rollouts, known=known)
        if self.feed_state is not None:
            feed.load_state_dict(self.feed_state)
        return feed

    async def _host(self) -> PolicyHost:
        """Return who samples; in this process a copy of the model where both work at once."""
        if placed := self.config.policy.placed:
            is_there = all(where.url for where in placed)
            self.observer.say("connecting to vLLM" if is_there else "starting vLLM")
            last_step = max(self.first, self.kept.last_step())
            pool = ServerPool(
                self.trainer, self.config, folder=self.folder.path, last_step=last_step
            )
            return await pool.start()
        if self.config.rollouts.store:
            logger.warning(
                "no [policy] uri: whoever plays into %r gets no new weights from this run",
                self.config.rollouts.store,
            )
        is_shared = self.config.rollouts.max_staleness == 0
        return InProcessHost(self.trainer, self.loaded.tokenizer, self.config, is_shared=is_shared)

    def _step(self, taken: Taken) -> dict[str, float]:
        groups = [played.group for played in taken.groups if played.group.rewards]
        try:
            return self.trainer.step(groups) if groups else self.trainer.step_rows([])
        except ValueError as e:  # a row that is beyond the trainer's budget, for one
            raise UsageError(f"step {self.trainer.num_steps + 1} cannot be taken: {e}") from e

    async def _evaluate(self, host: PolicyHost, *, is_first: bool = False) -> dict[str, float]:
        """Play the held-out tasks if it is time, and keep the best weights."""
        step, every = self.trainer.num_steps, self.config.evaluate.every_steps
        is_due = step == 0 if is_first else step % max(1, every) == 0
        if self.held_out is None or not (is_due or step == self.config.loop.num_steps):
            return {}
        if is_first:
            self.observer.say("evaluating the first weights")
        began = time.perf_counter()
        result = await self.held_out.evaluate(host.policy, step)
        self.folder.append_eval(result.lines)
        await self._in_thread(self.kept.record_held_out, step, result.rollouts)
        if self._keeps_best:
            offer = self.best.offer
            await self._in_thread(offer, self.trainer, step=step, success=result.success)
        return {**result.metrics, "time/evaluate_s": time.perf_counter() - began}

    @property
    def _keeps_best(self) -> bool:
        return self.held_out is not None and self.config.evaluate.should_keep_best

    async def _save(self, feed: GroupFeed, *, is_last: bool = False) -> dict[str, float]:
        """Write a checkpoint if it is time, or if steps were taken since the last one."""
        step = self.trainer.num_steps
        is_due = step % self.config.checkpoint.every_steps == 0
        if (is_last and (is_due or step == self.first)) or not (is_last or is_due):
            return {}
        began = time.perf_counter()
        cursor = {"feed": feed.state_dict(), "num_idle": self.watch.num_idle}
        path = await self._in_thread(
            self.trainer.save_checkpoint,
            self.folder.checkpoints,
            cursor,
            max_checkpoints=self.config.checkpoint.max_checkpoints,
        )
        self.best.settle(step)
        logger.info("checkpoint %s", path)
        return {"time/save_s": time.perf_counter() - began}

    def _restore(self) -> int:
        """Load the newest checkpoint if there is one; return how many steps were taken."""
        try:
            path = checkpoints.latest(self.folder.checkpoints)
        except CheckpointError:
            self.best.forget_after(-1)  # the first weights are evaluated again
            return 0
        cursor = self.trainer.load_checkpoint(path)
        self.feed_state = cursor["feed"]
        self.watch.num_idle = int(cursor["num_idle"])
        self.best.forget_after(self.trainer.num_steps)
        logger.info("continuing from %s", path)
        self.observer.say(f"continuing after step {self.trainer.num_steps}")
        return self.trainer.num_steps

    def _rates(
        self, taken: Taken, metrics: Mapping[str, float], total_s: float, feed: GroupFeed
    ) -> dict[str, float]:
        num_sampled = sum(
            rollout.num_completion_tokens
            for played in (*taken.groups, *taken.refused)
            for rollout in played.group.rollouts
        )
        of_feed = feed.metrics()
        if self.held_out is None and "eval/store/success" in of_feed:
            of_feed["eval/success"] = of_feed["eval/store/success"]
        return {
            **of_feed,
            "time/wait_s": taken.wait_s,
            "time/total_s": total_s,
            "rate/sampled_tokens_per_s": num_sampled / total_s,
            "rate/trained_tokens_per_s": metrics.get("train/num_flat_tokens", 0.0) / total_s,
            "rate/trainer_idle": max(0.0, 1 - metrics["time/step_s"] / total_s),
            "rate/sampler_idle": min(1.0, feed.idle_s() / total_s),
            **memory_metrics(),
        }

    def _tell(self, metrics: Mapping[str, float], trackers: Sequence[Tracker]) -> None:
        step = self.trainer.num_steps
        self.folder.append_metrics(step, metrics)
        for tracker in trackers:
            tracker.log(step, metrics)
        self.observer.step(step, self.config.loop.num_steps, metrics)


def _trainer(loaded: LoadedModel, config: RlConfig) -> Trainer:
    try:
        return Trainer(
            loaded.model,
            config.loop.algorithm,
            args=config.trainer_config(),
            tokenizer=loaded.tokenizer,
        )
    except ValueError as e:
        raise UsageError(f"{config.model.path!r} cannot be trained like this: {e}") from e

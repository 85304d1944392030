"""One run of `katgym train rl`, from its configuration to a better model.

The loop is `RlRun.train`: groups of rollouts, an optimizer step, new weights for the policy. Not
here: which tasks (`curriculum.py`), playing them ahead (`group_stream.py`), who samples
(`policy_hosts.py`), the step itself (`trainer.py`), the folder (`runs/run_folder.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from katgym.cluster.joining import joined
from katgym.play.engine import EngineConfig, GroupPlayer, RolloutEngine
from katgym.play.rollout import RolloutGroup
from katgym.plugins.env_ref import EnvRef
from katgym.system.concurrency import DaemonThreads
from katgym_trainer.config.rl_config import RlConfig, StaleGroups
from katgym_trainer.models.preparation import DTYPES
from katgym_trainer.ranks.lead import Lead
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.rl.curriculum import Curriculum
from katgym_trainer.rl.group_stream import GroupFeed, GroupStream, Taken
from katgym_trainer.rl.held_out import HeldOut
from katgym_trainer.rl.kept_rollouts import KeptRollouts
from katgym_trainer.rl.learning_watch import LearningWatch
from katgym_trainer.rl.rl_checks import check_prompts, check_store
from katgym_trainer.rl.rl_metrics import memory_metrics, rollout_metrics
from katgym_trainer.rl.servers.policy_hosts import InProcessHost, PolicyHost
from katgym_trainer.rl.servers.server_pool import ServerPool
from katgym_trainer.rl.servers.weight_delivery import WeightDelivery
from katgym_trainer.rl.store_stream import StoreStream
from katgym_trainer.runs.model_loading import load_frozen, load_model
from katgym_trainer.runs.process.stop_signals import StopSignals
from katgym_trainer.runs.run_folder import RunFolder
from katgym_trainer.runs.training_run import Observer, RunResult, TrainingRun
from katgym_trainer.saving.best_model import BestModel
from katgym_trainer.trackers.tracker import Tracker
from katgym_trainer.weight_sync.served_weights import ServedModel

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RlResult(RunResult):
    """What a run left behind.

    Example:
        {"folder": "runs/tiny", "kind": "rl", "step": 100, "num_steps": 100, "resumed_from": 0,
         "metrics": {"rollout/reward": 0.8}, "model": "runs/tiny/model", "wall_s": 312.5,
         "exit_code": 0, "best": {"step": 80, "headline": 0.83}}
    """

    best: Mapping[str, float] | None
    """Step and `headline` of the best evaluated weights; None: nothing was evaluated."""

    def outcome(self) -> Iterator[str]:
        if "rollout/success" in self.metrics:
            yield f"success {self.metrics['rollout/success']:.3f}"
        if self.best is not None:
            yield f"held-out {self.best['headline']:.3f} at best (step {self.best['step']:.0f})"


class RankedRlRun(TrainingRun[RlConfig, RlResult]):
    """What every rank of a run holds: its share of the model, and calls that they make together."""

    def prepare(
        self, check: Callable[[], None] = lambda: None, look: Callable[[], None] = lambda: None
    ) -> Mapping[str, Any] | None:
        """Load model, trainer and checkpoint; return the checkpoint's cursor.

        check, look: what the first rank looks at before and after the model is loaded.
        """
        config, ranks = self.config, self.ranks
        ranks.together(check)
        self.load_model()
        ranks.together(look)
        frozen = load_frozen(config, self.loaded.tokenizer, ranks=ranks)
        self.make_trainer(config.loop.algorithm, config.trainer_config, frozen=frozen)
        self.num_steps = config.loop.num_steps
        cursor = self.restore()
        dtype = DTYPES[self.trainer.config.dtype] if ranks.num > 1 else None
        served = ServedModel(self.trainer.model, ranks=ranks, dtype=dtype)
        self.lead = Lead(ranks, trainer=self.trainer, served=served)
        methods = ["scores", "weights", "write", "write_adapter", "connect", "send", "disconnect"]
        self.served = self.lead.proxy("served", served, *methods)
        return cursor

    def train(self, trackers: Sequence[Tracker], stop: StopSignals) -> dict[str, float]:
        self.lead.follow()
        return {}

    def write_model(self, folder: Path) -> None:
        """Write the best weights where held-out tasks say which these are, else the last."""
        best = self.ranks.on_first(self.find_best)
        if best is None:
            super().write_model(folder)
        elif self.ranks.is_first:
            shutil.copytree(best, folder, dirs_exist_ok=True)

    def find_best(self) -> Path | None:
        """Return where the best weights are; None: the last are to be taken."""
        return None

    def result(self, **common: Any) -> RlResult:
        return RlResult(**common, best=None)


class RlFollower(RankedRlRun):
    """What a rank that is not the first holds: it plays nothing."""

    def __init__(
        self, config: RlConfig, folder: RunFolder, observer: Observer, ranks: Ranks
    ) -> None:
        super().__init__(config, folder, observer, ranks)
        self.prepare()


class RlRun(RankedRlRun):
    """What one process of a run holds, or the first of its ranks, which alone plays.

    It raises also `RlRunError` (`learning_watch.py`) when the policy learns nothing, and
    `PolicyError` when it only fails.
    """

    follower = RlFollower

    def __init__(
        self, config: RlConfig, folder: RunFolder, observer: Observer, ranks: Ranks = ALONE
    ) -> None:
        """Make envs, model and trainer, and load the newest checkpoint if there is one."""
        super().__init__(config, folder, observer, ranks)
        cursor = self.prepare(self.make_source, self.check_prompts)
        methods = ("step_rows", "save_checkpoint", "save_pretrained")
        self.trainer = self.lead.proxy("trainer", self.trainer, *methods)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="katgym-rl")
        # Before a policy computes with fewer threads, of which this one would keep the number.
        self._threads.submit(torch.get_num_threads).result()
        self.best = BestModel(folder.path, config.evaluate.compared())
        self.watch = LearningWatch(config.loop.max_idle_steps)
        self.feed_state: Mapping[str, Any] | None = None
        """What groups go on from, of a run that is continued."""
        # What a run begins with is evaluated again.
        self.best.forget_after(-1 if cursor is None else self.first)
        if cursor is not None:
            self.feed_state, self.watch.num_idle = cursor["feed"], int(cursor["num_idle"])
            observer.say(f"continuing after step {self.first}")
        folder.open_metrics(self.first)
        assert self.trainer.algorithm.advantage is not None, "checked with the file"
        self.shaping = config.rewards.shaping(config.rollouts.max_episode_tokens)
        self.kept = KeptRollouts(
            folder.path, advantage=self.trainer.algorithm.advantage, shaping=self.shaping
        )

    def make_source(self) -> None:
        """Make what is played, as far as it needs no model."""
        config = self.config
        check_store(config)
        self.source = None
        if not config.rollouts.store:
            self.source = Curriculum(config.envs, config.rollouts, seed=config.loop.seed)
            if config.rollout_workers:
                for _, env, _ in self.source.first_lessons():
                    EnvRef.of(env)  # workers make it, too
        self.held_out = HeldOut(config) if config.evaluate.every_steps else None

    def check_prompts(self) -> None:
        if self.source is not None:
            check_prompts(self.config, self.loaded.renderer, self.source.first_lessons())

    def train(self, trackers: Sequence[Tracker], stop: StopSignals) -> dict[str, float]:
        is_over = self.trainer.num_steps == self.num_steps
        has_servers = bool(self.config.policy.uri) and not is_over
        with self.lead.leading(), joined(self.config.cluster if has_servers else None):
            return {} if is_over else asyncio.run(self._train(trackers, stop))

    async def _train(self, trackers: Sequence[Tracker], stop: StopSignals) -> dict[str, float]:
        metrics: dict[str, float] = {}
        asyncio.get_running_loop().set_default_executor(DaemonThreads())  # envs may hang in them
        beat = asyncio.create_task(self._stay_awake())
        host = await self._host()
        try:
            async with (
                self._player(host) as player,
                self._feed(player, host) as feed,
                contextlib.aclosing(WeightDelivery(host, feed)) as delivery,
            ):
                earlier = await host.push(self.first)
                feed.advance(self.first)
                await self._evaluate(player, delivery, is_first=True)
                ended_s, _ = time.perf_counter(), feed.idle_s()
                while self.trainer.num_steps < self.num_steps:
                    # 1. Groups of rollouts, by weights at most max_staleness steps old.
                    taken = await feed.take(
                        lambda: stop.received is not None or delivery.has_failed
                    )
                    if delivery.has_failed:
                        await delivery.end()
                    if stop.received is not None:
                        break
                    metrics = rollout_metrics(taken, self.trainer.num_steps, self.config.rollouts)
                    await self._in_thread(
                        self.kept.record, self.trainer.num_steps + 1, taken.groups, taken.refused
                    )

                    # 2. Advantages, pruning, packing, the optimizer.
                    async with host.training():
                        groups = [found.group for found in taken.groups if found.group.rewards]
                        metrics |= await self._in_thread(self.take_step, self._step, groups)

                    # 3. New weights for the policy, which goes on with them; those of the step
                    # before are there by now.
                    step = self.trainer.num_steps
                    is_evaluated = self.held_out is not None and self.held_out.is_due(step)
                    has_pause = is_evaluated or step == self.num_steps
                    metrics |= earlier | await delivery.begin(step, has_pause=has_pause)

                    # 4. Held-out tasks, and what is kept.
                    metrics |= await self._evaluate(player, delivery)
                    total_s, ended_s = time.perf_counter() - ended_s, time.perf_counter()
                    metrics |= self._rates(taken, metrics, total_s, feed)
                    self.report(metrics, trackers)
                    # After the metrics: a checkpoint has all of them.
                    earlier = await self._save(feed)
                    self.watch.check(step, metrics, taken)
                await self._save(feed, is_last=True)
                await delivery.end()
        finally:
            beat.cancel()
            await host.aclose()
        return metrics

    def _step(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        sizes, how = self.config.rollouts, {"masks": self.config.rewards.masks()}
        oldest = self.trainer.num_steps - sizes.max_staleness
        oldest = oldest if sizes.stale is StaleGroups.PARTIAL else 0
        rows = self.trainer.rows_of(groups, shaping=self.shaping, oldest_version=oldest, **how)
        return self.trainer.step_rows(rows, is_scaled=True)

    async def _stay_awake(self) -> None:
        """Tell ranks that wait for their next step that there will be one."""
        while self.ranks.num > 1:
            await asyncio.sleep(self.ranks.timeout_s / 4)
            await asyncio.to_thread(self.lead.beat)

    def find_best(self) -> Path | None:
        return self.best.path if self._keeps_best and self.best.found is not None else None

    def result(self, **common: Any) -> RlResult:
        return RlResult(**common, best=self.best.found)

    def close(self) -> None:
        """Close what the run holds open, once no thread of it works with that."""
        self._threads.shutdown()
        self.kept.close()
        super().close()

    async def _in_thread(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function in the run's own thread, which no env can keep busy."""
        call = functools.partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @contextlib.asynccontextmanager
    async def _player(self, host: PolicyHost) -> AsyncIterator[GroupPlayer]:
        """Return who plays groups: this process, or workers on a cluster."""
        rollouts, num = self.config.rollouts, self.config.rollouts.max_concurrency
        engine = RolloutEngine(
            host.policy,
            limits=rollouts.limits,
            sampling=self.config.policy.sampling,
            config=EngineConfig(max_concurrency=num, max_retries=rollouts.max_retries),
        )
        if not isinstance(host, ServerPool) or self.config.cluster is None:
            yield engine
            return
        from katgym_trainer.rl.servers.run_workers import RunWorkers  # it imports Ray

        if self.config.cluster.rollout_workers:
            self.observer.say("placing rollout workers")
        workers = RunWorkers(host, self.config, folder=self.folder.path, engine=engine)
        async with workers.open():
            yield workers

    def _feed(self, player: GroupPlayer, host: PolicyHost) -> GroupFeed:
        """Return where groups come from: played here, or by others into a store."""
        feed: GroupFeed
        rollouts, known = self.config.rollouts, self.kept.after(self.first)
        if self.source is None:
            feed = StoreStream(
                rollouts,
                temperature=self.config.policy.temperature,
                replace_sessions=host.replace_sessions,
                known=known,
                find_trained=functools.partial(self.kept.trained, self.first),
            )
        else:
            feed = GroupStream(self.source, player, rollouts, known=known)
        if self.feed_state is not None:
            feed.load_state_dict(self.feed_state)
        return feed

    async def _host(self) -> PolicyHost:
        """Return who samples; in this process a copy of the model where both work at once."""
        if placed := self.config.policy.placed:
            is_there = all(where.url for where in placed)
            self.observer.say("connecting to vLLM" if is_there else "starting vLLM")
            pool = ServerPool(
                self.trainer,
                self.config,
                folder=self.folder.path,
                last_step=max(self.first, self.kept.last_step()),
                served=self.served,
            )
            return await pool.start()
        if self.config.rollouts.store:
            logger.warning(
                "no [policy] uri: whoever plays into %r gets no new weights from this run",
                self.config.rollouts.store,
            )
        is_alone = self.ranks.num == 1
        is_shared = is_alone and self.config.rollouts.max_staleness == 0
        copied = None
        if not is_alone:
            self.observer.say("loading a whole copy that plays on the first rank")
            copied = load_model(self.config.model, self.trainer.config.dtype).model
        return InProcessHost(
            self.served, self.loaded.tokenizer, self.config, is_shared=is_shared, copied=copied
        )

    async def _evaluate(
        self, player: GroupPlayer, delivery: WeightDelivery, *, is_first: bool = False
    ) -> dict[str, float]:
        """Play the held-out tasks if it is time, and keep the best weights."""
        step = self.trainer.num_steps
        if self.held_out is None or not (step == 0 if is_first else self.held_out.is_due(step)):
            return {}
        if is_first:
            self.observer.say("evaluating the first weights")
        delivered = await delivery.end()
        began = time.perf_counter()
        result = await self.held_out.evaluate(player, step)
        self.folder.append_eval(result.lines)
        await self._in_thread(self.kept.record_held_out, step, result.rollouts)
        if self._keeps_best:
            await self._in_thread(
                self.best.offer, self.trainer, step=step, headline=result.headline
            )
        return {**delivered, **result.metrics, "time/evaluate_s": time.perf_counter() - began}

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
        await self._in_thread(self.save, cursor)
        self.best.settle(step)
        return {"time/save_s": time.perf_counter() - began}

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

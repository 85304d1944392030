"""Several policies in one episode, one per seat: self-play and head-to-head.

The env says whose turn it is (`env.seat`); each seat has its own conversation, session and
rollout, and all share one `episode_id`. Not here: the single-seat loop (`agent_loop.py`).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from katgym.environment.env import Env
from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.reward import Reward
from katgym.errors import ContextLengthError, UsageError, check_name
from katgym.play.agent_loop import (
    CALLER_ERRORS,
    cap_turns,
    resolve_env,
    resolve_policy,
    token_budget,
)
from katgym.play.episode_clock import EpisodeClock, HungError, Phase
from katgym.play.limits import Limits
from katgym.play.recorder import Recorder, classify
from katgym.play.rollout import Rollout
from katgym.play.seeding import derive_seed
from katgym.policies.base import EpisodeContext, Policy, Sampling, Session


async def run_match(
    env: Env | str,
    policies: Mapping[str, Policy | str],
    *,
    seed: int | None = None,
    task_id: str | None = None,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    shuffle_seats: bool = False,
) -> dict[str, Rollout]:
    """Play one episode with a policy per seat and return a rollout per seat.

    policies: seat -> policy or URI, for exactly the env's seats. With `shuffle_seats=True` the keys
        are any names for the players, and `seed` decides who sits where; the result's keys are
        still seats, and `rollout.policy` says who played.

    A budget that runs out for one seat truncates the episode for all; a failure of one policy
    makes every seat's reward invalid, as the game was never decided.
    """
    playground = resolve_env(env)
    limits, sampling = limits or Limits(), sampling or Sampling()
    seating = _seat(playground, policies, seed, shuffle_seats)
    players = {seat: resolve_policy(policy) for seat, policy in seating.items()}
    episode_id = uuid.uuid4().hex
    recorders = {
        seat: Recorder(env=playground, policy=player, seed=seed, episode_id=episode_id)
        for seat, player in players.items()
    }
    contexts = {
        seat: EpisodeContext(
            env=playground,
            tools=playground.tools,
            sampling=sampling,
            seed=None if seed is None else derive_seed("sampling", seed, seat),
            seat=seat,
            max_context_tokens=limits.max_context_tokens,
            max_episode_tokens=limits.max_tokens,
        )
        for seat in players
    }
    options = {"task_id": task_id, "max_turns": cap_turns(playground, limits)}
    match = _Match(playground, recorders, contexts, EpisodeClock(limits))
    try:
        return await match.clock.watch(match.play({k: v for k, v in options.items() if v}))
    except HungError as error:
        await match.clock.release_hung(playground)
        return match.fail(error)
    finally:
        for seat, player in players.items():
            if player is not seating[seat]:
                await player.aclose()


@dataclass(slots=True)
class _Match:
    """One match in progress."""

    env: Env
    recorders: dict[str, Recorder]
    contexts: dict[str, EpisodeContext]
    clock: EpisodeClock
    sessions: dict[str, Session] = field(default_factory=dict)

    async def play(self, options: dict[str, object]) -> dict[str, Rollout]:
        """Reset, let the seats take turns, and conclude for all of them."""
        try:
            return await self._play(options)
        finally:
            await self.clock.release(self.env)

    async def _play(self, options: dict[str, object]) -> dict[str, Rollout]:
        env, clock = self.env, self.clock
        status, cut = RolloutStatus.TRUNCATED, None
        try:
            async with clock.running(Phase.RESET):
                recorder = next(iter(self.recorders.values()))
                observation, _ = await env.areset(seed=recorder.seed, options=options)
                self.recorders[env.seat].messages += observation
                for seat, context in self.contexts.items():
                    self.contexts[seat] = replace(context, tools=env.tools)
                while True:
                    seat = env.seat
                    recorder, context = self.recorders[seat], self.contexts[seat]
                    max_tokens = token_budget(clock.limits, context.sampling, recorder)
                    if max_tokens == 0:
                        cut = FailureKind.MAX_TOKENS
                        break
                    clock.pass_to(Phase.ANSWER)
                    if seat not in self.sessions:
                        self.sessions[seat] = recorder.policy.start(context)
                    recorder.begin_turn(context.tool_schemas)
                    session = self.sessions[seat]
                    completion = await session.complete(recorder.messages, max_tokens=max_tokens)
                    message = recorder.completed(completion)
                    clock.pass_to(Phase.STEP)
                    observation, _, terminated, truncated, _ = await env.astep(message)
                    recorder.stepped((), env.last_tool_results)
                    self.recorders[env.seat].messages += observation
                    if terminated or truncated:
                        status = RolloutStatus.TERMINATED if terminated else status
                        break
        except ContextLengthError:
            cut = FailureKind.CONTEXT_LENGTH
        except CALLER_ERRORS:
            raise
        except Exception as error:  # the match's boundary: a failure is a status
            fault = clock.fault(error, has_answered=recorder.has_answered)
            if fault is not None:
                return self.fail(fault)
            cut = FailureKind.EPISODE_TIMEOUT
        finally:
            for session in self.sessions.values():
                await clock.release(session, phase=Phase.ANSWER)
        try:
            async with clock.running(Phase.GRADING):
                if cut is not None:
                    await env.atruncate(cut)
                rewards = env.seat_rewards()
        except CALLER_ERRORS:
            raise
        except Exception as error:  # the same boundary
            return self.fail(clock.fault(error) or error)
        return self._conclude(status, rewards)

    def fail(self, error: Exception) -> dict[str, Rollout]:
        """Return what remains of a match that something outside the policies broke."""
        kind = classify(error, default=self.clock.blamed)
        return {s: r.failed(self.contexts[s], error, kind) for s, r in self.recorders.items()}

    def _conclude(self, status: RolloutStatus, rewards: Mapping[str, Reward]) -> dict[str, Rollout]:
        """A budget that ended the match is every seat's `failure_kind`."""
        whole = self.env.last_reward
        return {
            seat: recorder.rollout(
                self.contexts[seat],
                status=status,
                reward=rewards[seat],
                kind=rewards[seat].failure_kind or (whole.failure_kind if whole else None),
            )
            for seat, recorder in self.recorders.items()
        }


def _seat(
    env: Env, policies: Mapping[str, Policy | str], seed: int | None, shuffle: bool
) -> dict[str, Policy | str]:
    """Return seat -> policy, checked or shuffled."""
    if len(policies) != len(env.seats):
        raise UsageError(
            f"this env has {len(env.seats)} seats ({', '.join(env.seats)}),"
            f" got {len(policies)} policies: {', '.join(map(repr, policies))}"
        )
    if shuffle:
        players = list(policies.values())
        random.Random(None if seed is None else derive_seed("seats", seed)).shuffle(players)
        return dict(zip(env.seats, players, strict=True))
    for seat in policies:
        check_name("seat", seat, env.seats)
    return {seat: policies[seat] for seat in env.seats}

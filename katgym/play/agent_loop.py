"""The agent loop: one policy plays one episode, and everything that happened is recorded.

`run_rollout` reads top to bottom: reset, turns, end. Not here: what follows when the time is up
(`episode_clock.py`), many episodes at once (`engine.py`), several seats (`match.py`), the policy's
tokens (`policies/token_policy.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from katgym.environment.env import Env
from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.errors import ContextLengthError, MissingDependencyError, UsageError
from katgym.play.episode_clock import EpisodeClock, HungError, Phase
from katgym.play.limits import Limits
from katgym.play.recorder import Recorder, classify
from katgym.play.rollout import Rollout
from katgym.play.seeding import derive_seed
from katgym.policies.base import EpisodeContext, Policy, Sampling, Session

CALLER_ERRORS = (UsageError, MissingDependencyError, NotImplementedError)
"""Mistakes of the caller (unknown task, env without an oracle): raised, never made a rollout."""


async def run_rollout(
    env: Env | str,
    policy: Policy | str,
    *,
    seed: int | None = None,
    task_id: str | None = None,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    split: str | None = None,
    attempt: int = 0,
    note: str = "",
) -> Rollout:
    """Play one episode and return its whole record.

    env: an env (also one wrapped by `gymnasium.make`) or an id; what is made here is closed here.
    policy: a policy or its URI; likewise.
    seed: fixes the env's episode and, with `attempt`, the sampling. Attempts of one seed meet the
        same episode and differ in what is sampled; None draws both afresh.
    task_id: plays this task of the split; None lets the seed choose.
    note: told to the policy behind the env's opening, and recorded there; the env does not see it.

    A failure of policy or infrastructure becomes the rollout's status and an invalid reward. Raises
    `UsageError` for mistakes of the caller, and whatever cancelled it.
    """
    playground = resolve_env(env)
    if len(playground.seats) > 1:
        raise UsageError(
            f"this env has {len(playground.seats)} seats ({', '.join(playground.seats)});"
            " play it with run_match, a policy per seat"
        )
    player = resolve_policy(policy)
    limits, sampling = limits or Limits(), sampling or Sampling()
    given = {"task_id": task_id, "split": split, "max_turns": cap_turns(playground, limits)}
    options = {name: value for name, value in given.items() if value}
    recorder = Recorder(env=playground, policy=player, seed=seed, attempt=attempt, note=note)
    context = EpisodeContext(
        env=playground,
        tools=playground.tools,
        sampling=sampling,
        seed=None if seed is None else derive_seed("sampling", seed, attempt),
        max_context_tokens=limits.max_context_tokens,
        max_episode_tokens=limits.max_tokens,
    )
    clock = EpisodeClock(limits)
    try:
        return await clock.watch(play(recorder, context, clock, options))
    except HungError as error:
        await clock.release_hung(playground)
        context = replace(context, tools=playground.tools)
        return recorder.failed(context, error, classify(error, default=clock.blamed))
    finally:
        if player is not policy:
            await player.aclose()


async def play(
    recorder: Recorder, context: EpisodeContext, clock: EpisodeClock, options: dict[str, Any]
) -> Rollout:
    """Play the episode that `recorder` and `context` describe; the loop, in one piece."""
    env, policy = recorder.env, recorder.policy
    session: Session | None = None
    status, cut = RolloutStatus.TRUNCATED, None
    try:
        async with clock.running(Phase.RESET):
            # 1. Reset.
            observation, _ = await env.areset(seed=recorder.seed, options=options)
            recorder.opened(observation)
            context = replace(context, tools=env.tools)
            clock.pass_to(Phase.ANSWER)
            session, tools = policy.start(context), context.tool_schemas

            # 2. Turns: the policy answers, the env runs the tool calls and replies. The loop ends
            #    with the env's word (`status`), or when a budget outside it is used up (`cut`).
            while max_tokens := token_budget(clock.limits, context.sampling, recorder):
                recorder.begin_turn(tools)
                completion = await session.complete(recorder.messages, max_tokens=max_tokens)
                message = recorder.completed(completion)
                clock.pass_to(Phase.STEP)
                observation, _, terminated, truncated, _ = await env.astep(message)
                recorder.stepped(observation, env.last_tool_results)
                clock.pass_to(Phase.ANSWER)
                if terminated or truncated:
                    status = RolloutStatus.TERMINATED if terminated else status
                    break
            else:
                cut = FailureKind.MAX_TOKENS
    except ContextLengthError:
        cut = FailureKind.CONTEXT_LENGTH
    except CALLER_ERRORS:
        raise
    except Exception as error:  # the rollout's boundary: a failure is a status
        if fault := clock.fault(error, has_answered=recorder.has_answered):
            return recorder.failed(context, fault, classify(fault, default=clock.blamed))
        cut = FailureKind.EPISODE_TIMEOUT
    finally:
        if session is not None:
            await clock.release(session, phase=Phase.ANSWER)
        if cut is None:
            await clock.release(env)

    # 3. End: the env has graded itself, unless a budget outside it cut the episode short.
    if cut is not None:
        try:
            async with clock.running(Phase.GRADING):
                await env.atruncate(cut)
        except CALLER_ERRORS:
            raise
        except Exception as error:  # the same boundary
            fault = clock.fault(error) or error
            return recorder.failed(context, fault, classify(fault, default=clock.blamed))
        finally:
            await clock.release(env)
    assert env.last_reward is not None
    return recorder.rollout(context, status=status, reward=env.last_reward)


def cap_turns(env: Env, limits: Limits) -> int | None:
    """Return the turns to ask the env for: a limit lowers the env's own number, never raises it."""
    return None if limits.max_turns is None else min(limits.max_turns, env.max_turns)


def token_budget(limits: Limits, sampling: Sampling, recorder: Recorder) -> int:
    """Tokens the next completion may have; 0 when the episode's budget is used up."""
    if limits.max_tokens is None:
        return sampling.max_tokens
    return max(0, min(sampling.max_tokens, limits.max_tokens - recorder.num_completion_tokens))


def resolve_env(env: Env | str) -> Env:
    """Return the katgym env behind an id, an env, or Gymnasium's wrappers around one."""
    if isinstance(env, str):
        from katgym.plugins.registry import make  # the registry imports envs

        return make(env)
    inner = getattr(env, "unwrapped", env)
    if not isinstance(inner, Env):
        raise UsageError(f"env is a katgym.Env or the id of one, got {env!r}")
    return inner


def resolve_policy(policy: Policy | str) -> Policy:
    """Return the policy behind a URI, or the policy itself."""
    if isinstance(policy, str):
        from katgym.policies.uri import policy as make_policy  # it needs the plugins

        return make_policy(policy)
    if not isinstance(policy, Policy):
        raise UsageError(f"policy is a katgym Policy or its URI, got {policy!r}")
    return policy

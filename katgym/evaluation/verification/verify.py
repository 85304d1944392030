"""Verification of a run: what its folder says, its plan, its episodes, its policy.

    report = await verify_run(Path("runs/smollm2"))

1. files, chain, attempts, tokens, summary    what stands there holds together (`folder.py`)
2. plan       envs, made here, have the tasks and tools that seed and number of tasks choose
3. episodes   every rollout is played again from its recorded answers (`restep.py`)
4. policy     it answers the same again, or its weights are tested against the tokens (`rescore.py`)

What none of this sees is said in docs/guides/verify.md. Not here: the command (`cli/runs`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

import msgspec

import katgym
from katgym.evaluation.plan import EvalConfig, PlannedEnv, plan_env
from katgym.evaluation.verification.bundle import Bundle, name_of, read_bundle
from katgym.evaluation.verification.folder import (
    LOCAL_SCHEMES,
    check_attempts,
    check_chain,
    check_summary,
    check_tokens,
)
from katgym.evaluation.verification.recorded_policy import BY_POLICY
from katgym.evaluation.verification.report import (
    POLICY,
    NotCompared,
    Verdict,
    VerifyCheck,
    VerifyReport,
)
from katgym.evaluation.verification.rescore import FLOAT32, HALF, judge_scores
from katgym.evaluation.verification.restep import restep
from katgym.plugins.env_file import is_file_id
from katgym.policies.base import Policy
from katgym.policies.token_policy import TokenPolicy
from katgym.policies.token_scores import TokenScorer
from katgym.policies.uri import policy as make_policy
from katgym.rollout_store import StoredSession
from katgym.rollout_store.rollouts import as_rollout

_REPEATABLE = ("oracle", "noop", "random")
"""Policies that answer the same again; `scripted:` would, from the same file."""
_OF_THE_MACHINE = ("dtype", "device", "torch", "transformers")
"""Details of a local policy that may differ where it is verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """How a run is verified."""

    rescore_tokens: int = 4096
    """Sampled tokens whose log-probs are computed again, of rollouts drawn at random; 0: none."""
    weights: str = ""
    """URI of the weights that the run claims, as hf:DIR; "" takes the run's own hf: or smollm2."""
    root: str = ""
    """The root that the run has to have, as its author told it; "" takes any."""


async def verify_run(folder: Path, config: VerifyConfig | None = None) -> VerifyReport:
    """Verify a run's folder and return what was found; nothing in it is changed.

    `UsageError` for a folder that is no run or has no chain, and for weights that cannot be had.
    """
    config = config or VerifyConfig()
    bundle, files = read_bundle(folder)
    chain, link = check_chain(bundle, config.root)
    checks = [files, chain, check_attempts(bundle), check_tokens(bundle)]
    checks.append(check_summary(bundle, link))
    envs, plan = _check_plan(bundle)
    async with AsyncExitStack() as stack:
        policy, why_not = _make_judge(bundle, config)
        if policy is not None:
            await stack.enter_async_context(aclosing(policy))
        not_compared = {env.env_id: NotCompared() for env in bundle.lock.envs}
        checks += [
            plan, *await _check_episodes(bundle, envs, policy, why_not, config, not_compared)
        ]  # fmt: skip
    return VerifyReport(
        folder=str(folder),
        policy=bundle.lock.policy,
        root=link.sha256,
        num_segments=link.segment,
        checks={check.name: check for check in checks},
        not_compared=not_compared,
        task_trust={
            (env_id, task_id): trust
            for env_id, planned in envs.items()
            for task_id in planned.task_sha256
            if (trust := planned.env.tasks(bundle.lock.split).get(task_id).trust) is not None
        },
    )


def _check_plan(bundle: Bundle) -> tuple[dict[str, PlannedEnv], VerifyCheck]:
    """Make the envs and choose their tasks; return those that can be played here."""
    check, lock, found = VerifyCheck(name="plan"), bundle.lock, {}
    if lock.katgym_version != katgym.__version__:
        check.unverified.append(
            f"the run is of katgym {lock.katgym_version}, here is {katgym.__version__}"
        )
    for env in lock.envs:
        if env.num_tasks != len(env.tasks):
            check.refuted.append(f"{env.env_id} has {len(env.tasks)} tasks, not {env.num_tasks}")
            continue
        if is_file_id(env.env_id):  # anybody's path, which making the env would run
            check.unverified.append(
                f"{env.env_id} is of a file, which verifying does not run: put it into a plugin"
            )
            continue
        try:
            config = EvalConfig(
                envs=(env.env_id,),
                policy=lock.policy,
                num_tasks=env.num_tasks,
                group_size=lock.group_size,
                seed=lock.seed,
                split=lock.split,
            )
            planned = plan_env(env.env_id, env.kwargs, config)
        except Exception as e:  # arguments of anybody for code of anybody
            check.unverified.append(f"{env.env_id} cannot be made here: {type(e).__name__}: {e}")
            continue
        own, told = json.loads(json.dumps(planned.lock())), msgspec.to_builtins(env)
        differing = [name for name in own if own[name] != told[name]]
        if "plugin_version" in differing:
            check.unverified.append(
                f"{env.env_id} is of plugin version {env.plugin_version}, here is"
                f" {planned.env.plugin_version}"
            )
        elif differing:
            check.refuted.append(
                f"{env.env_id}: seed and version give other {', '.join(differing)}"
            )
        else:
            check.num_verified += 1
        found[env.env_id] = planned
    return found, check


def _make_judge(bundle: Bundle, config: VerifyConfig) -> tuple[Policy | None, str]:
    """Return the policy that is asked beside the record, or why there is none."""
    uri, scheme = bundle.lock.policy, bundle.lock.scheme
    if scheme in (*_REPEATABLE, "scripted") and not config.weights:
        is_asked = True
    elif not config.rescore_tokens:
        return None, "it was not asked for (rescore_tokens is 0)"
    else:
        is_asked = scheme in LOCAL_SCHEMES
    if not (config.weights or is_asked):
        return None, f"{uri!r} cannot be asked again; --set weights=hf:DIR names weights to test"
    try:
        return make_policy(config.weights or uri), ""
    except Exception as e:  # a URI of anybody names files of anybody
        if config.weights:
            raise
        return None, f"it cannot be had here: {type(e).__name__}: {e}"


async def _check_episodes(
    bundle: Bundle,
    envs: Mapping[str, PlannedEnv],
    policy: Policy | None,
    why_not: str,
    config: VerifyConfig,
    not_compared: dict[str, NotCompared],
) -> list[VerifyCheck]:
    """Play every rollout again; ask the policy beside it.

    not_compared: by env id; what is left open is added there.
    """
    episodes, asked = VerifyCheck(name="episodes"), VerifyCheck(name=POLICY)
    valid = {
        name_of(s) for s in bundle.sessions if s.record.rollout and s.record.rollout.reward.is_valid
    }
    answering: list[StoredSession] = []  # whose tokens are what the policy's chat format gives
    for session in bundle.sessions:
        name, record = name_of(session), session.record.rollout
        if record is None:
            episodes.unverified.append(f"{name}: it holds no rollout")
            continue
        planned = envs.get(record.env_id)
        left_open = not_compared.setdefault(record.env_id, NotCompared())
        metrics = {n for n, c in record.reward.components.items() if not c.weight}
        if planned is None or record.task_id not in planned.task_sha256:
            episodes.unverified.append(f"{name}: its env or its task is not there")
            left_open.metrics |= metrics
            continue
        try:
            rollout = as_rollout(session)
            found = await restep(
                planned.env.clone(), rollout, limits=bundle.lock.limits, policy=policy
            )
        except Exception as e:  # a record of anybody, played by an env of anybody
            episodes.unverified.append(f"{name}: it cannot be played here: {type(e).__name__}: {e}")
            left_open.metrics |= metrics
            continue
        left_open.metrics |= found.unverified_metrics
        is_odd = found.has_gone_on or bundle.lock.scheme in LOCAL_SCHEMES
        if rollout.failure_kind in BY_POLICY and is_odd and name not in valid:
            episodes.unverified.append(f"{name}: {rollout.failure_kind} there, it answers here")
        elif found.verdict is Verdict.VERIFIED:
            episodes.num_verified += 1
            if rollout.reward.is_valid and not planned.env.is_deterministic:
                left_open.num_turns += rollout.num_turns
                left_open.num_equal_turns += found.num_equal_turns
            left_open.num_trust += not found.is_trust_verified
        else:
            is_refuted = found.verdict is Verdict.REFUTED
            target = episodes.refuted if is_refuted else episodes.unverified
            target.append(f"{name}: {found.reason}")
        if found.otherwise:
            is_certain = bundle.lock.scheme in ("random", "noop") or isinstance(policy, TokenPolicy)
            target = asked.refuted if is_certain else asked.unverified
            target.append(f"{name}: {found.otherwise[0]}")
        elif found.num_asked:
            answering.append(session)
    for env_id, each in not_compared.items():
        if each.num_turns:
            told = f"{each.num_equal_turns} of {each.num_turns} turns went as there"
            episodes.notes.append(f"{env_id}: {told}")
    if policy is None:
        asked.unverified.append(why_not)
    elif isinstance(policy, TokenPolicy):
        _rescore(bundle, policy, answering, asked, config)
    else:
        asked.num_verified = len(answering)
        asked.notes.append("asked again, it answers the same")
    return [episodes, asked]


def _rescore(
    bundle: Bundle,
    policy: TokenPolicy,
    sessions: Sequence[StoredSession],
    check: VerifyCheck,
    config: VerifyConfig,
) -> None:
    """Test the weights against the tokens of rollouts that nobody could foresee."""
    if not isinstance(policy, TokenScorer):
        check.unverified.append(f"{config.weights!r} are no weights to test; they are hf:DIR")
        return
    lock = bundle.lock
    has_draws = lock.scheme in LOCAL_SCHEMES
    if has_draws and not config.weights:
        told, own = ({**lock.policy_details}, policy.describe())
        for details in (told, own):
            details["model"] = Path(str(details.get("model"))).name
            for name in _OF_THE_MACHINE:
                details.pop(name, None)
        if told != own:
            check.refuted.append(f"the lock describes it as {told}, here it is {own}")
    dtypes = {lock.policy_details.get("dtype"), policy.describe().get("dtype")}
    tolerance = FLOAT32 if dtypes == {"float32"} else HALF
    order = list(sessions)
    random.SystemRandom().shuffle(order)
    names, scores, num_tokens = [], [], 0
    for session in order:
        rollout = as_rollout(session)
        if num_tokens >= config.rescore_tokens:
            break
        if not rollout.has_tokens:
            continue
        score = policy.score_rollout(rollout, tolerance, has_draws=has_draws)
        names.append(name_of(session))
        scores.append(score)
        num_tokens += score.num_tokens
    if not scores:
        check.unverified.append("no rollout has tokens to test")
        return
    for place, what in judge_scores(scores, tolerance):
        check.refuted.append(f"{'all together' if place is None else names[place]}: {what}")
    check.num_verified = len(scores) if not check.refuted else 0
    drawn = " and their draws from the run's seed" if has_draws else ""
    worst = max(score.logprob_error for score in scores)
    check.notes.append(
        f"weights tested on {num_tokens} tokens of {len(scores)} rollouts{drawn};"
        f" log-probs differ by {worst:.1g} at most"
    )

"""Checks of a run's folder by itself: chain, planned attempts, tokens, summary.

Nothing is played, and no env is needed: this finds what does not hold together. Not here: reading
it (`bundle.py`), whether the plan is the one that its seed gives (`verify.py`), and whether what
happened could happen (`restep.py`).
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from katgym.environment.failure import FailureKind
from katgym.evaluation.chain import LINK, ChainLink, first_link, link_of
from katgym.evaluation.plan import rollout_key
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.verification.bundle import Bundle, name_of
from katgym.evaluation.verification.report import VerifyCheck
from katgym.play.recorder import ROUTE
from katgym.play.rollout import Rollout
from katgym.play.seeding import derive_seed
from katgym.rollout_store import StoredSession
from katgym.rollout_store.groups import GROUP_SIZE
from katgym.rollout_store.records import SessionRecord
from katgym.rollout_store.rollouts import as_rollout, as_session

_CLOCK_S = 600.0
"""By how much clocks of machines that continue a run may differ."""
_IS_ABOVE_0 = 1e-3
"""A log-probability may be this much above 0, by rounding (`TokenPolicy.check`)."""
_ROUNDING_S = 1e-3
LOCAL_SCHEMES = ("hf", "smollm2")
"""Policies that katgym's own engine samples, from seeds."""
TOKEN_SCHEMES = (*LOCAL_SCHEMES, "vllm")
"""Policies that record tokens."""
NAMED_SCHEMES = (*TOKEN_SCHEMES, "openai", "oracle", "noop", "random", "scripted")
"""Policies whose name is their URI."""
BY_CLOCK = (FailureKind.EPISODE_TIMEOUT, FailureKind.ENV_TIMEOUT)


def check_chain(bundle: Bundle, root: str) -> tuple[VerifyCheck, ChainLink]:
    """Compute every link anew, and return the last; root: the one that is expected, or ""."""
    link, latest_s = first_link(bundle.raw_lock), bundle.lock.created_s

    def problems_of(session: StoredSession) -> Iterable[str]:
        nonlocal link, latest_s
        record, found, last = session.record, link_of(session.record), link
        if found is None or record.rollout is None:
            yield "it has no link of the chain"
            return
        link, before_s, latest_s = found, latest_s, record.ended_s or 0.0
        if found.number != last.number + 1 or found.segment not in (last.segment, last.segment + 1):
            yield f"link {found.number} follows link {last.number}"
        expected = ChainLink(number=last.number, segment=found.segment, sha256=last.sha256)
        if expected.extend(session).sha256 != found.sha256:
            yield f"link {found.number} is not the hash of what stands there"
        if not bundle.lock.created_s - _CLOCK_S <= latest_s - record.rollout.wall_s:
            yield "it began before the run was created"
        if not before_s - _CLOCK_S <= latest_s <= time.time() + _CLOCK_S:
            yield "it ended before the one written before it, or in the future"

    check = _check_each(bundle, "chain", problems_of)
    if root and root != link.sha256:
        check.refuted.append(f"the root is {link.sha256}, expected was {root}")
    return check, link


def _check_each(
    bundle: Bundle, name: str, problems_of: Callable[[StoredSession], Iterable[str]]
) -> VerifyCheck:
    """Check every session; one of a shape that no rollout has is refuted, and hurts nothing."""
    check = VerifyCheck(name=name)
    for session in bundle.sessions:
        try:
            problems = list(problems_of(session))
        except Exception as e:  # columns of anybody may hold anything
            problems = [f"it is not as a rollout is written: {e!r}"]
        check.refuted += [f"{name_of(session)}: {problem}" for problem in problems]
        check.num_verified += not problems
    return check


def check_attempts(bundle: Bundle) -> VerifyCheck:
    """Compare sessions with the plan of the lock: nothing missing, nothing doubled."""
    lock = bundle.lock
    valid: set[str] = set()
    in_segment: Counter[tuple[str, int]] = Counter()

    def problems_of(session: StoredSession) -> Iterable[str]:
        name, rollout, link = name_of(session), session.record.rollout, link_of(session.record)
        if name in valid:
            yield "it was played again although it had a valid reward"
        if link is not None:
            in_segment[name, link.segment] += 1
            if in_segment[name, link.segment] == 2:
                yield "one process played it twice"
        if rollout is not None and rollout.reward.is_valid:
            valid.add(name)
        yield from _misfits(bundle, session)

    check = _check_each(bundle, "attempts", problems_of)
    ids = Counter(s.record.rollout.episode_id for s in bundle.sessions if s.record.rollout)
    check.refuted += [f"episode {found!r} occurs {n} times" for found, n in ids.items() if n > 1]
    if lock.scheme in NAMED_SCHEMES:
        own = {"name": lock.policy, "model_id": None, "model": lock.policy_details.get("model")}
        if "#" in lock.policy:
            own["model"] = lock.policy.rpartition("#")[2].partition("?")[0]
        if (told := {name: lock.policy_details.get(name) for name in own}) != own:
            check.refuted.append(f"the policy is {lock.policy!r}, by its details {told}")
    played = {name_of(session) for session in bundle.sessions}
    for env_id, task_id in bundle.tasks:
        missing = [
            attempt
            for attempt in itertools.islice(range(lock.group_size), len(played) + 1)
            if rollout_key(env_id, task_id, attempt) not in played
        ]
        check.unverified += [f"{rollout_key(env_id, task_id, a)}: not played" for a in missing]
    if again := len(bundle.sessions) - len(played):
        check.notes.append(f"{again} failed rollouts were played again")
    if num_invalid := len(played) - len(valid):
        check.notes.append(f"{num_invalid} attempts have no valid reward")
    return check


def _misfits(bundle: Bundle, session: StoredSession) -> Iterable[str]:
    """Yield what a session says otherwise than the plan."""
    record, rollout, lock = session.record, session.record.rollout, bundle.lock
    planned = rollout and bundle.tasks.get((rollout.env_id, rollout.task_id))
    if not rollout or not planned or not 0 <= rollout.attempt < lock.group_size:
        yield "it is not planned"
        return
    metadata = {GROUP_SIZE: lock.group_size, LINK: record.metadata.get(LINK)}
    own = as_session(
        rollout, group_id=planned.group_id, metadata=metadata, ended_s=record.ended_s or 0.0
    ).record
    wanted = {
        each.name: (getattr(record, each.name), getattr(own, each.name))
        for each in fields(SessionRecord)
        if each.name not in ("rollout", "reward")
    }
    wanted |= {
        "seed": (rollout.seed, planned.seed),
        "sampling_seed": (
            rollout.sampling_seed,
            derive_seed("sampling", planned.seed, rollout.attempt),
        ),
        "task_sha256": (rollout.task_sha256, planned.sha256),
        "plugin_version": (rollout.plugin_version, planned.env.plugin_version),
        "split": (rollout.split, lock.split),
        "sampling": (rollout.sampling, lock.sampling),
        "policy": (rollout.policy, lock.policy_name),
        "outcome": (rollout.status, as_rollout(session).status),
        "failed_calls": (len(session.failed_calls), 0),
    }
    every_turn: dict[str, Any] = {"model": lock.policy_name, "route": ROUTE, "sampling": {}}
    every_turn |= {"call_id": "", "choice": 0, "upstream": ""}
    for index, turn in enumerate(session.turns):
        for name, expected in every_turn.items():
            wanted[f"{name} of turn {index}"] = (getattr(turn, name), expected)
    for name, (found, expected) in wanted.items():
        if found != expected:
            yield f"{name} is {found!r}, by the lock it is {expected!r}"


def check_tokens(bundle: Bundle) -> VerifyCheck:
    """Check that tokens, counts, tool results and times of every rollout hold together."""
    return _check_each(bundle, "tokens", lambda session: _broken(bundle, as_rollout(session)))


def _broken(bundle: Bundle, rollout: Rollout) -> Iterable[str]:
    """Yield what of a rollout contradicts itself or the limits of its run."""
    needs_tokens = bundle.lock.scheme in TOKEN_SCHEMES
    lengths: list[int] = []
    cut = rollout.failure_kind is FailureKind.EPISODE_TIMEOUT or not rollout.reward.is_valid
    for index, turn in enumerate(rollout.turns):
        where, tokens = f"turn {index}", turn.tokens
        if tokens is None:
            if needs_tokens:
                yield f"{where} has no tokens, which its policy records"
        else:
            parent = -1 if tokens.parent is None else tokens.parent
            if parent >= index or tokens.num_shared > (lengths[parent] if parent >= 0 else 0):
                yield f"{where} shares {tokens.num_shared} tokens with turn {tokens.parent}"
            counts = (tokens.num_shared + len(tokens.prompt_ids), len(tokens.completion_ids))
            if counts != (turn.num_prompt_tokens, turn.num_completion_tokens):
                yield f"{where} has {counts} tokens read and sampled, its counts say otherwise"
            if bundle.lock.scheme in LOCAL_SCHEMES and tokens.policy_version:
                yield f"{where} is of version {tokens.policy_version} of weights nobody trains"
            if len(tokens.policy_logprobs) != counts[1] or not counts[1]:
                yield f"{where} has {len(tokens.policy_logprobs)} log-probs, {counts[1]} tokens"
            if not all(-math.inf < value <= _IS_ABOVE_0 for value in tokens.policy_logprobs):
                yield f"{where} has a log-prob that is none"
        num_sampled = turn.num_completion_tokens
        lengths.append(turn.num_prompt_tokens + num_sampled)
        if not 0 <= num_sampled <= bundle.lock.sampling.max_tokens or turn.num_prompt_tokens < 0:
            allowed = bundle.lock.sampling.max_tokens
            yield f"{where} has {num_sampled} tokens, allowed are {allowed}"
        calls = [call["id"] for call in turn.answer.get("tool_calls", ())] if turn.answer else []
        results = [result.call_id for result in turn.tool_results]
        if calls != results and not (cut and index == len(rollout.turns) - 1 and not results):
            yield f"{where} has results of calls {results}, its answer makes {calls}"
        later = rollout.turns[index + 1 :]
        reply = later[0].messages if later else rollout.final_messages
        told = {m.get("tool_call_id"): m["content"] for m in reply if m["role"] == "tool"}
        for result in turn.tool_results:
            if told.get(result.call_id, result.content) != result.content:
                yield f"{where} has a result of {result.call_id!r} that is told otherwise"
    yield from _misplaced_times(bundle, rollout)
    limit = bundle.lock.limits.max_tokens
    if limit is not None and rollout.num_completion_tokens > limit:
        yield f"it has {rollout.num_completion_tokens} sampled tokens, allowed are {limit}"


def _misplaced_times(bundle: Bundle, rollout: Rollout) -> Iterable[str]:
    """Yield times that no clock shows: turns follow each other, and their tools run in them."""
    began_s = 0.0
    for index, turn in enumerate(rollout.turns):
        times = (began_s, turn.started_s, turn.sent_s, turn.completed_s, turn.ended_s)
        if not _is_sorted((*times, rollout.wall_s)):
            yield f"turn {index} has times that run backwards: {(*times, rollout.wall_s)}"
        began_s, worked_s = turn.ended_s, turn.ended_s - turn.completed_s + _ROUNDING_S
        for result in turn.tool_results:
            on_own_clock = (result.called_s, result.started_s, result.ended_s)
            if not _is_sorted(on_own_clock) or result.ended_s - result.called_s > worked_s:
                yield f"turn {index} has a call at times that cannot be: {on_own_clock}"
    timeout_s = bundle.lock.limits.timeout_s
    is_early = timeout_s is None or rollout.wall_s < timeout_s - _ROUNDING_S
    if rollout.failure_kind in BY_CLOCK and is_early:
        yield f"a clock of {timeout_s} s ended it after {rollout.wall_s} s"
    if rollout.num_retries < 0:
        yield f"it was tried again {rollout.num_retries} times"


def _is_sorted(times: Iterable[float]) -> bool:
    return all(before <= later for before, later in itertools.pairwise(times))


def check_summary(bundle: Bundle, link: ChainLink) -> VerifyCheck:
    """Compute the figures anew from the rollouts that count."""
    check, summary = VerifyCheck(name="summary"), bundle.summary
    if summary is None:
        check.unverified.append("there is no summary.json: the run was interrupted")
        return check
    if not isinstance(summary, dict) or summary.keys() != {"root", "envs"}:
        check.refuted.append("summary.json is none of a run, which has root and envs")
        return check
    root = summary["root"]
    if root != link.sha256:
        known = {found.sha256 for s in bundle.sessions if (found := link_of(s.record))}
        is_older = root in known or root == first_link(bundle.raw_lock).sha256
        target = check.unverified if is_older else check.refuted
        target.append(
            "summary.json is older than the rollouts: the run was interrupted; the command that"
            " made it continues it"
            if is_older
            else f"summary.json is of another run: its root is {root!r}"
        )
        return check
    try:
        own = summarize(as_rollout(session) for session in bundle.chosen).to_json()["envs"]
        own = json.loads(json.dumps(own))
    except Exception as e:  # as in `_check_each`
        check.refuted.append(f"the rollouts give no figures: {e!r}")
        return check
    check.refuted += list(_unequal(summary["envs"], own, "summary.json"))
    check.num_verified = len(own)
    return check


def _unequal(found: Any, own: Any, where: str) -> Iterable[str]:
    """Yield where JSON values differ by more than rounding."""
    if isinstance(found, dict) and isinstance(own, dict):
        if found.keys() != own.keys():
            yield f"{where} has {sorted(found)}, the rollouts give {sorted(own)}"
        for name in found.keys() & own.keys():
            yield from _unequal(found[name], own[name], f"{where} {name}")
    elif isinstance(found, float) and isinstance(own, float):
        if not math.isclose(found, own, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{where} is {found!r}, the rollouts give {own!r}"
    elif type(found) is not type(own) or found != own:
        yield f"{where} is {found!r}, the rollouts give {own!r}"

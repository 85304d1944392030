"""Checks of a run's folder by itself: chain, planned attempts, tokens, summary.

Nothing is played, and no env is needed: this finds what does not hold together. Not here: whether
the plan is the one that its seed gives, and whether what happened could happen (`restep.py`).
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from katgym.environment.failure import FailureKind
from katgym.errors import UsageError
from katgym.evaluation.chain import CHAIN_FORMAT, ChainLink, first_link, link_of
from katgym.evaluation.plan import rollout_key
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.store import group_id, read_lock
from katgym.evaluation.verification.report import VerifyCheck
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.play.seeding import derive_seed
from katgym.policies.base import Sampling
from katgym.rollout_store import RolloutStore, StoredSession
from katgym.rollout_store.groups import GROUP_SIZE, chosen_attempts
from katgym.rollout_store.rollouts import as_rollout

_CLOCK_S = 600.0
"""By how much clocks of machines that continue a run may differ."""
_IDENTITY = ("policy", "split", "seed", "group_size", "sampling", "limits", "policy_details")
_IS_ABOVE_0 = 1e-3
"""A log-probability may be this much above 0, by rounding (`TokenPolicy.check`)."""
TOKEN_SCHEMES = ("hf", "smollm2", "vllm")
"""Policies that record tokens."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One planned rollout: what a session of it has to say."""

    group_id: str
    seed: int
    sampling_seed: int
    task_sha256: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A run's folder as it was read."""

    folder: Path
    lock: Mapping[str, Any]
    sessions: Sequence[StoredSession]
    """In the order of their links."""
    sampling: Sampling
    limits: Limits
    attempts: Mapping[str, Attempt]
    """Every planned one, by `rollout_key`."""

    @property
    def chosen(self) -> list[StoredSession]:
        """The sessions that count, one for each attempt."""
        groups: dict[str, list[StoredSession]] = defaultdict(list)
        for session in self.sessions:
            groups[session.record.group_id].append(session)
        by_id = {session.record.session_id: session for session in self.sessions}
        chosen = (chosen_attempts(s.record for s in group) for group in groups.values())
        return [by_id[record.session_id] for records in chosen for record in records]


def name_of(session: StoredSession) -> str:
    """Return what a finding calls a session."""
    rollout = session.record.rollout
    if rollout is None:
        return f"session {session.record.session_id!r}"
    return rollout_key(rollout.env_id, rollout.task_id, rollout.attempt)


def read_bundle(folder: Path) -> tuple[Bundle, VerifyCheck]:
    """Return a run as it stands, with what of its files could not be read.

    `UsageError` for a folder that is no run, or one without a chain.
    """
    lock, check = read_lock(folder), VerifyCheck(name="files")
    if lock.get("chain") != CHAIN_FORMAT:
        raise UsageError(
            f"{str(folder)!r} has no hash chain (lock.json says {lock.get('chain')!r}, this katgym"
            f" reads {CHAIN_FORMAT}), so it cannot be verified. Runs of this katgym have one."
        )
    if not RolloutStore.is_at(folder):
        raise UsageError(f"{str(folder)!r} holds no rollouts yet; `katgym eval` plays them")
    sessions: list[StoredSession] = []
    with RolloutStore.open(folder, create=False) as store:
        for record in store.sessions():
            try:
                sessions.append(store.stored(record.session_id))
            except UsageError as e:
                check.refuted.append(str(e))
        if store.num_left_out:
            check.refuted.append(f"{store.num_left_out} of its shards cannot be read")
    check.num_verified = len(sessions)
    numbers = {id(s): link.number if (link := link_of(s.record)) else 0 for s in sessions}
    sessions.sort(key=lambda s: (numbers[id(s)], s.record.session_id))
    try:
        sampling, limits = Sampling(**lock["sampling"]), Limits(**lock["limits"])
        attempts = dict(_planned(lock))
    except (KeyError, TypeError, AttributeError) as e:
        raise UsageError(f"lock.json of {str(folder)!r} is not as katgym writes it: {e!r}") from e
    return Bundle(folder, lock, sessions, sampling, limits, attempts), check


def _planned(lock: Mapping[str, Any]) -> Iterable[tuple[str, Attempt]]:
    shared = {name: lock[name] for name in _IDENTITY}
    for env in lock["envs"]:
        for task_id, sha256 in env["tasks"].items():
            group = group_id(shared, env, (task_id, sha256))
            seed = derive_seed("env", lock["seed"], env["env_id"], task_id)
            for attempt in range(lock["group_size"]):
                sampling_seed = derive_seed("sampling", seed, attempt)
                key = rollout_key(env["env_id"], task_id, attempt)
                yield key, Attempt(group, seed, sampling_seed, sha256)


def check_chain(bundle: Bundle, root: str) -> tuple[VerifyCheck, ChainLink]:
    """Compute every link anew, and return the last; root: the one that is expected, or ""."""
    check = VerifyCheck(name="chain")
    link = first_link(bundle.lock)
    created_s = datetime.fromisoformat(bundle.lock["created"]).timestamp()
    latest_s = created_s
    for session in bundle.sessions:
        record, found = session.record, link_of(session.record)
        problems = []
        if found is None or record.rollout is None:
            check.refuted.append(f"{name_of(session)}: it has no link of the chain")
            continue
        if found.number != link.number + 1 or found.segment not in (link.segment, link.segment + 1):
            problems.append(f"link {found.number} follows link {link.number}")
        expected = ChainLink(number=link.number, segment=found.segment, sha256=link.sha256)
        if expected.extend(session).sha256 != found.sha256:
            problems.append(f"link {found.number} is not the hash of what stands there")
        ended_s = record.ended_s or 0.0
        if not created_s - _CLOCK_S <= ended_s - record.rollout.wall_s:
            problems.append("it began before the run was created")
        if not latest_s - _CLOCK_S <= ended_s <= time.time() + _CLOCK_S:
            problems.append("it ended before the one written before it, or in the future")
        check.refuted += [f"{name_of(session)}: {problem}" for problem in problems]
        check.num_verified += not problems
        link, latest_s = found, ended_s
    if root and root != link.sha256:
        check.refuted.append(f"the root is {link.sha256}, expected was {root}")
    return check, link


def check_attempts(bundle: Bundle) -> VerifyCheck:
    """Compare sessions with the plan of the lock: nothing missing, nothing doubled."""
    check = VerifyCheck(name="attempts")
    valid: set[str] = set()
    in_segment: Counter[tuple[str, int]] = Counter()
    for session in bundle.sessions:
        name = name_of(session)
        problems = list(_misfits(bundle, session))
        rollout, link = session.record.rollout, link_of(session.record)
        if name in valid:
            problems.append("it was played again although it had a valid reward")
        if link is not None:
            in_segment[name, link.segment] += 1
            if in_segment[name, link.segment] == 2:
                problems.append("one process played it twice")
        if rollout is not None and rollout.reward.is_valid:
            valid.add(name)
        check.refuted += [f"{name}: {problem}" for problem in problems]
        check.num_verified += not problems
    ids = Counter(s.record.rollout.episode_id for s in bundle.sessions if s.record.rollout)
    check.refuted += [f"episode {found!r} occurs {n} times" for found, n in ids.items() if n > 1]
    played = {name_of(session) for session in bundle.sessions}
    check.unverified += [f"{key}: not played" for key in bundle.attempts if key not in played]
    again = len(bundle.sessions) - len(played)
    if again:
        check.notes.append(f"{again} failed rollouts were played again")
    if num_invalid := len(played) - len(valid):
        check.notes.append(f"{num_invalid} attempts have no valid reward")
    return check


def _misfits(bundle: Bundle, session: StoredSession) -> Iterable[str]:
    """Yield what a session says otherwise than the plan."""
    record, rollout, lock = session.record, session.record.rollout, bundle.lock
    planned = bundle.attempts.get(name_of(session))
    if rollout is None or planned is None:
        yield "it is not planned"
        return
    name = lock["policy_details"].get("name", rollout.policy)
    wanted = {
        "group_id": (record.group_id, planned.group_id),
        "group_size": (record.metadata.get(GROUP_SIZE), lock["group_size"]),
        "session_id": (record.session_id, rollout.episode_id),
        "seed": (rollout.seed, planned.seed),
        "sampling_seed": (rollout.sampling_seed, planned.sampling_seed),
        "task_sha256": (rollout.task_sha256, planned.task_sha256),
        "split": (rollout.split, lock["split"]),
        "sampling": (rollout.sampling, bundle.sampling),
        "policy": (rollout.policy, name),
        "status": (rollout.status, as_rollout(session).status),
        "model": ({turn.model for turn in session.turns} - {name}, set()),
        "sampling of a turn": ([t for t in session.turns if t.sampling], []),
        "failed_calls": (len(session.failed_calls), 0),
    }
    for field, (found, expected) in wanted.items():
        if found != expected:
            yield f"{field} is {found!r}, by the lock it is {expected!r}"


def check_tokens(bundle: Bundle) -> VerifyCheck:
    """Check that tokens, counts, tool results and times of every rollout hold together."""
    check = VerifyCheck(name="tokens")
    needs_tokens = scheme_of(bundle.lock["policy"]) in TOKEN_SCHEMES
    for session in bundle.sessions:
        if session.record.rollout is None:
            continue
        rollout = as_rollout(session)
        problems = list(_broken(bundle, rollout, needs_tokens))
        check.refuted += [f"{name_of(session)}: {problem}" for problem in problems]
        check.num_verified += not problems
    return check


def scheme_of(policy: str) -> str:
    """Return the scheme of a policy's URI."""
    return policy.partition(":")[0].partition("?")[0]


def _broken(bundle: Bundle, rollout: Rollout, needs_tokens: bool) -> Iterable[str]:
    """Yield what of a rollout contradicts itself or the limits of its run."""
    lengths: list[int] = []
    cut = rollout.failure_kind is FailureKind.EPISODE_TIMEOUT or not rollout.reward.is_valid
    for index, turn in enumerate(rollout.turns):
        where, tokens = f"turn {index}", turn.tokens
        if needs_tokens and tokens is None:
            yield f"{where} has no tokens, which its policy records"
        if tokens is not None:
            parent = -1 if tokens.parent is None else tokens.parent
            if parent >= index or tokens.num_shared > (lengths[parent] if parent >= 0 else 0):
                yield f"{where} shares {tokens.num_shared} tokens with turn {tokens.parent}"
            counts = (tokens.num_shared + len(tokens.prompt_ids), len(tokens.completion_ids))
            if counts != (turn.num_prompt_tokens, turn.num_completion_tokens):
                yield f"{where} has {counts} tokens read and sampled, its counts say otherwise"
            if len(tokens.policy_logprobs) != counts[1] or not counts[1]:
                yield f"{where} has {len(tokens.policy_logprobs)} log-probs, {counts[1]} tokens"
            if not all(-math.inf < value <= _IS_ABOVE_0 for value in tokens.policy_logprobs):
                yield f"{where} has a log-prob that is none"
        num_sampled = turn.num_completion_tokens
        lengths.append(turn.num_prompt_tokens + num_sampled)
        if num_sampled > bundle.sampling.max_tokens:
            yield f"{where} has {num_sampled} tokens, allowed are {bundle.sampling.max_tokens}"
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
        times = (0.0, turn.started_s, turn.sent_s, turn.completed_s, turn.ended_s, rollout.wall_s)
        if any(later < before for before, later in itertools.pairwise(times)):
            yield f"{where} has times that run backwards: {times}"
    limit = bundle.limits.max_tokens
    if limit is not None and rollout.num_completion_tokens > limit:
        yield f"it has {rollout.num_completion_tokens} sampled tokens, allowed are {limit}"


def check_summary(bundle: Bundle, link: ChainLink) -> VerifyCheck:
    """Compute the figures anew from the rollouts that count."""
    check = VerifyCheck(name="summary")
    path = bundle.folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        root, envs = summary["root"], dict(summary["envs"])
    except FileNotFoundError:
        check.unverified.append("there is no summary.json: the run was interrupted")
        return check
    except (ValueError, KeyError, TypeError) as e:
        check.refuted.append(f"summary.json cannot be read: {e!r}")
        return check
    if root != link.sha256:
        known = {found.sha256 for s in bundle.sessions if (found := link_of(s.record))}
        is_older = root in known or root == first_link(bundle.lock).sha256
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
    except UsageError as e:
        check.refuted.append(str(e))
        return check
    if set(envs) != set(own):
        check.refuted.append(f"summary.json has envs {sorted(envs)}, the rollouts {sorted(own)}")
    check.refuted += list(_unequal(envs, own, "summary.json"))
    check.num_verified = len(own)
    return check


def _unequal(found: Any, own: Any, where: str) -> Iterable[str]:
    """Yield where JSON values differ by more than rounding; what only one of them has is newer."""
    if isinstance(found, dict) and isinstance(own, dict):
        for name in own:
            if name in found:
                yield from _unequal(found[name], own[name], f"{where} {name}")
    elif isinstance(found, float) or isinstance(own, float):
        is_number = isinstance(found, int | float) and isinstance(own, int | float)
        if not (is_number and math.isclose(found, own, rel_tol=1e-6, abs_tol=1e-9)):
            yield f"{where} is {found!r}, the rollouts give {own!r}"
    elif found != own:
        yield f"{where} is {found!r}, the rollouts give {own!r}"

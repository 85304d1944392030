"""Whether a group that others played can be trained on, and what is said while groups are missing.

Not here: taking groups (`store_stream.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from katgym.rollout import Rollout, RolloutGroup
from katgym.rollout_store.groups import IncompleteGroup
from katgym_trainer.rollouts.rollout_checks import check_same_task, check_tokens

_MAX_TOLD = 3


def reason_against(group: RolloutGroup, *, temperature: float, version: int) -> tuple[str, str]:
    """Return in a word and in a sentence why a group cannot be trained on; ("", "") if it can.

    temperature: of the policy that is trained. version: its newest weights.
    """
    valid = [rollout for rollout in group.rollouts if rollout.reward.is_valid]
    if not valid:
        last = group.rollouts[-1]
        return str(last.reward.failure_kind), f"session {last.episode_id!r}: {last.reward.reason}"
    try:
        check_same_task(group.rollouts, "it")
        for rollout in valid:
            check_tokens(rollout, f"session {rollout.episode_id!r}")
    except ValueError as e:
        return "unusable", str(e)
    if not any(rollout.turns for rollout in valid):
        return "no_calls", (
            f"session {valid[-1].episode_id!r} made no model call: its agent has to use the"
            " session's base URL and key (AgentSession.environ)"
        )
    if newer := [v for v in map(_newest_version, valid) if v > version]:
        return "other_run", (
            f"weights of version {max(newer)} sampled it, and this run has version {version}: take"
            " a store of its own for every run"
        )
    return _reason_against_sampling(valid, temperature)


def _reason_against_sampling(rollouts: Sequence[Rollout], temperature: float) -> tuple[str, str]:
    """Return what is wrong with how rollouts were sampled: a ratio needs log-probs of one kind."""
    for rollout in rollouts:
        told = rollout.sampling
        if (told.temperature, told.top_p, told.top_k) != (temperature, 1.0, 0):
            return "other_sampling", (
                f"session {rollout.episode_id!r} was sampled at temperature {told.temperature:g},"
                f" top_p {told.top_p:g}, top_k {told.top_k}, and is trained at temperature"
                f" {temperature:g}, top_p 1, top_k 0: start the gateway with --sampling"
                f" temperature={temperature:g} --sampling top_p=1.0 --sampling top_k=0"
            )
    return "", ""


def waiting_text(
    store: str,
    num_there: int,
    num_groups: int,
    *,
    missing: Sequence[IncompleteGroup],
    left_out: Mapping[str, int],
) -> str:
    """Return what a step waits for, and what may be the matter.

    left_out: how many groups were, by reason.
    """
    text = f"waiting for groups in {store!r}: {num_there} of {num_groups} are there"
    if left_out:
        told = ", ".join(f"{num} {reason}" for reason, num in sorted(left_out.items()))
        text += f"; left out so far: {told}"
    if missing:
        shown = "; ".join(map(_told, missing[:_MAX_TOLD]))
        return text + f"; {len(missing)} groups are not complete: {shown}"
    return text + (
        "; no other has begun. Do agents play, in sessions with a group_id, and does the gateway"
        " write to this store?"
    )


def _told(group: IncompleteGroup) -> str:
    size = "an unknown number of" if group.group_size is None else group.group_size
    text = f"{group.group_id!r} has {group.num_ended} of {size} sessions ended"
    if group.open_sessions:
        age_s = max(0.0, time.time() - group.began_s)
        return text + f", {group.open_sessions[0]!r} is open ({age_s:.0f} s)"
    return text + ", and none is open"


def _newest_version(rollout: Rollout) -> int:
    versions = (turn.tokens.policy_version for turn in rollout.turns if turn.tokens is not None)
    return max(versions, default=0)

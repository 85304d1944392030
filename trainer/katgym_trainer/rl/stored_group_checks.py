"""Whether a group that others played can be trained on, and what is said while groups are missing.

Not here: taking groups (`store_stream.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from katgym.play.rollout import RolloutGroup, Turn
from katgym.policies.base import Sampling
from katgym.rollout_store.groups import IncompleteGroup
from katgym_trainer.rollouts.rollout_checks import check_same_task, check_tokens

_MAX_SHOWN = 3


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
    turns = [turn for rollout in valid for turn in rollout.turns]
    newest = max((turn.tokens.policy_version for turn in turns if turn.tokens), default=0)
    if newest > version:
        return "other_run", (
            f"weights of version {newest} sampled it, and this run has version {version}: take"
            " a store of its own for every run"
        )
    free = [turn for turn in turns if not turn.constraint]
    if not free:
        return "constrained", (
            f"every answer was sampled under a constraint ({turns[0].constraint} is one), whose"
            " log-probabilities are not the model's: have the agent, and `sampling` of the gateway,"
            " ask without it in the calls that are to be trained"
        )
    for rollout in valid:  # a ratio needs log-probabilities of one kind
        own = [turn for turn in rollout.turns if not turn.constraint]
        for given in map(_sampling, [rollout.sampling] if rollout.sampling else own):
            if given != (temperature, 1.0, 0):
                return "other_sampling", (
                    f"session {rollout.episode_id!r} was sampled at temperature {given[0]:g},"
                    f" top_p {given[1]:g}, top_k {given[2]}, and is trained at temperature"
                    f" {temperature:g}, top_p 1, top_k 0: start the gateway with --set"
                    f" sampling.temperature={temperature:g} --set sampling.top_p=1.0 --set"
                    " sampling.top_k=0"
                )
    return "", ""


def _sampling(given: Sampling | Turn) -> tuple[float, float, int]:
    """Return temperature, top_p and top_k; what a call left out is the APIs' default."""
    if isinstance(given, Sampling):
        return given.temperature, given.top_p, given.top_k
    values = {name: value for name, value in given.sampling.items() if value is not None}
    top_k = values.get("top_k", 0)
    return values.get("temperature", 1.0), values.get("top_p", 1.0), max(0, top_k)


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
        counts = ", ".join(f"{num} {reason}" for reason, num in sorted(left_out.items()))
        text += f"; left out so far: {counts}"
    if not missing:
        return text + (
            "; no other has begun. Do agents play, in sessions with a group_id, and does the"
            " gateway write to this store?"
        )
    shown = []
    for group in missing[:_MAX_SHOWN]:
        size = "an unknown number of" if group.group_size is None else group.group_size
        open_text = "and none is open"
        if group.open_sessions:
            age_s = max(0.0, time.time() - group.began_s)
            open_text = f"{group.open_sessions[0]!r} is open ({age_s:.0f} s)"
        ended_text = f"{group.group_id!r} has {group.num_ended} of {size} sessions ended"
        shown.append(f"{ended_text}, {open_text}")
    return text + f"; {len(missing)} groups are not complete: {'; '.join(shown)}"

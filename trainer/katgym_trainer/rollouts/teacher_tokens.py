"""Rollouts of teachers that record no tokens get those that a model's renderer makes of their text.

What a student would have read and written had it been the teacher: the first prompt is rendered,
later ones go on from the tokens before them where the renderer can (else they are rendered anew),
each completion is the rendered answer up to the token that ends it. Log-probs are not known, so the
rows train supervised losses alone.

Not here: tokens that were sampled, which are kept as they are (`katgym/rendering.py`); which
renderer a model has (`katgym/policies/renderer_choice.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from katgym.chat_format import ChatFormat, for_renderer
from katgym.policies.base import BranchReason, TokenRecord
from katgym.rendering import num_common
from katgym.rollout import Rollout, Turn
from katgym_trainer.rollouts.rollout_checks import answer_of

if TYPE_CHECKING:
    from renderers.base import Renderer


def tokenized(rollout: Rollout, renderer: Renderer) -> Rollout:
    """Return the rollout with the tokens that `renderer` makes of every turn.

    Tokens it has are replaced. An answer that was cut at its most tokens has no end-of-turn token.
    Where the chat template rewrites earlier answers (drops their thinking), a turn branches off
    the one before it, as in a rollout that was sampled.

    Raises `ValueError` for a rollout that calls tools but lost their schemas (see `read_rollouts`),
    and for an answer that the renderer does not put right behind its prompt or does not end.
    """
    if not rollout.tools and any(turn.tool_results for turn in rollout.turns):
        raise ValueError(
            f"rollout {rollout.episode_id!r} calls tools, and their schemas are not there; read it"
            " with its run's lock.json"
        )
    turns: list[Turn] = []
    before: list[int] = []
    completion_ids: list[int] = []
    for index, turn in enumerate(rollout.turns):
        bridged_ids = _bridged(rollout, index, renderer, before, completion_ids)
        rendered_ids, completion_ids = _call(rollout, index, renderer)
        prompt_ids = rendered_ids if bridged_ids is None else bridged_ids
        turns.append(
            dataclasses.replace(
                turn,
                tokens=_record(index, before, prompt_ids, completion_ids),
                num_prompt_tokens=len(prompt_ids),
                num_completion_tokens=len(completion_ids),
            )
        )
        before = prompt_ids + completion_ids
    return dataclasses.replace(rollout, turns=turns)


def _record(
    index: int, before: Sequence[int], prompt_ids: Sequence[int], completion_ids: Sequence[int]
) -> TokenRecord:
    """Return a turn's tokens as a delta to those of the turn before it."""
    num_shared = num_common(before, prompt_ids)
    # Nobody edits a finished history: what a template changes in earlier answers is their thinking.
    is_branch = num_shared < len(before)
    return TokenRecord(
        parent=index - 1 if index else None,
        num_shared=num_shared,
        prompt_ids=prompt_ids[num_shared:],
        completion_ids=completion_ids,
        branch=BranchReason.THINK_STRIPPED if is_branch else None,
    )


def _bridged(
    rollout: Rollout,
    index: int,
    renderer: Renderer,
    before: list[int],
    completion_ids: list[int],
) -> list[int] | None:
    """Return a turn's prompt as it goes on from `before`; None where the renderer cannot tell.

    completion_ids: the end of `before`.
    """
    if not index:
        return None
    chat = ChatFormat(renderer, None, type(renderer).__name__)
    first_new = rollout.turns[index - 1].num_messages + 1
    new = rollout.messages[first_new : rollout.turns[index].num_messages]
    prompt_ids = before[: len(before) - len(completion_ids)]
    tools: list[Any] | None = list(rollout.tools) or None
    return chat.bridge(prompt_ids, completion_ids, new, tools)


def _call(rollout: Rollout, index: int, renderer: Renderer) -> tuple[list[int], list[int]]:
    """Return a turn's prompt, rendered anew, and its completion."""
    turn = rollout.turns[index]
    name = f"turn {index} of rollout {rollout.episode_id!r}"
    read, written = rollout.messages[: turn.num_messages], answer_of(rollout, index)
    tools: list[Any] | None = list(rollout.tools) or None
    prompt_ids = list(
        renderer.render_ids(for_renderer(read), tools=tools, add_generation_prompt=True)
    )
    whole_ids = list(renderer.render_ids(for_renderer([*read, written]), tools=tools))
    if whole_ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            f"{name}: {type(renderer).__name__} does not put the answer right behind its prompt, so"
            " its tokens cannot be told from the template's; line breaks that begin an answer can"
            f" merge with the template's. It begins {written['content'][:20]!r}"
        )
    answer_ids = whole_ids[len(prompt_ids) :]
    stops = set(renderer.get_stop_token_ids())
    end = next((place for place, token in enumerate(answer_ids) if token in stops), None)
    if turn.finish_reason == "length":
        return prompt_ids, answer_ids[:end]
    if end is None:
        raise ValueError(
            f"{name}: {type(renderer).__name__} ends the answer with none of its stop tokens"
            f" {sorted(stops)}"
        )
    return prompt_ids, answer_ids[: end + 1]

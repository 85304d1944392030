"""Tokens for rollouts of teachers that record none, as a model's renderer makes them of the text.

What a student would have read and written had it been the teacher: the first prompt is rendered,
later ones go on from the tokens before them where the renderer can (else they are rendered anew),
each completion is the rendered answer up to the token that ends it. Log-probs are not known, so the
rows train supervised losses alone.

Not here: tokens that were sampled, which are kept as they are
(`katgym/policies/token_policy.py`); which renderer a model has
(`katgym/policies/rendering/renderer_choice.py`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from katgym.play.rollout import Rollout, Turn, prompt_messages
from katgym.policies.base import BranchReason, TokenRecord
from katgym.policies.rendering.chat_format import ChatFormat, for_renderer, num_common
from katgym_trainer.rollouts.rollout_checks import answer_of

if TYPE_CHECKING:
    from renderers.base import Renderer


class AnswerBoundaryError(ValueError):
    """Where an answer begins or ends among the tokens of its chat format cannot be told."""


def tokenize_rollout(rollout: Rollout, renderer: Renderer) -> Rollout:
    """Return the rollout with the tokens that `renderer` makes of every turn.

    Tokens it has are replaced. An answer that was cut at its most tokens has no end-of-turn token.
    Where the chat template rewrites earlier answers (drops their thinking), a turn branches off
    the one before it, as in a rollout that was sampled.

    Raises `ValueError` for a rollout that calls tools but lost their schemas (see `read_rollouts`),
    and `AnswerBoundaryError` for an answer that the renderer does not put right behind its prompt
    or does not end.
    """
    if not rollout.tools and any(turn.tool_results for turn in rollout.turns):
        raise ValueError(
            f"rollout {rollout.episode_id!r} calls tools, and their schemas are not there: whoever"
            " recorded it left them out"
        )
    turns: list[Turn] = []
    before: list[int] = []
    completion_ids: list[int] = []
    chat = ChatFormat(renderer, None, type(renderer).__name__)
    tools: list[Any] | None = list(rollout.tools) or None
    for index, turn in enumerate(rollout.turns):
        # The prompt as it goes on from the turn before, or rendered anew.
        bridged_ids = None
        if index:
            new = prompt_messages(rollout.turns, index)[len(rollout.conversation(index - 1)) :]
            last_prompt_ids = before[: len(before) - len(completion_ids)]
            bridged_ids = chat.bridge(last_prompt_ids, completion_ids, new, tools)
        rendered_ids, completion_ids = _render_call(rollout, index, renderer)
        prompt_ids = rendered_ids if bridged_ids is None else bridged_ids
        # A delta to the tokens of the turn before. Nobody edits a finished history: what a template
        # changes in earlier answers is their thinking.
        num_shared = num_common(before, prompt_ids)
        turns.append(
            msgspec.structs.replace(
                turn,
                tokens=TokenRecord(
                    parent=index - 1 if index else None,
                    num_shared=num_shared,
                    prompt_ids=prompt_ids[num_shared:],
                    completion_ids=completion_ids,
                    branch=BranchReason.THINK_STRIPPED if num_shared < len(before) else None,
                ),
                num_prompt_tokens=len(prompt_ids),
                num_completion_tokens=len(completion_ids),
            )
        )
        before = prompt_ids + completion_ids
    return dataclasses.replace(rollout, turns=turns)


def _render_call(rollout: Rollout, index: int, renderer: Renderer) -> tuple[list[int], list[int]]:
    """Return a turn's prompt, rendered anew, and its completion."""
    turn = rollout.turns[index]
    name = f"turn {index} of rollout {rollout.episode_id!r}"
    read, written = prompt_messages(rollout.turns, index), answer_of(rollout, index)
    tools: list[Any] | None = list(rollout.tools) or None
    prompt_ids = list(
        renderer.render_ids(for_renderer(read), tools=tools, add_generation_prompt=True)
    )
    whole_ids = list(renderer.render_ids(for_renderer([*read, written]), tools=tools))
    if whole_ids[: len(prompt_ids)] != prompt_ids:
        raise AnswerBoundaryError(
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
        raise AnswerBoundaryError(
            f"{name}: {type(renderer).__name__} ends the answer with none of its stop tokens"
            f" {sorted(stops)}"
        )
    return prompt_ids, answer_ids[: end + 1]

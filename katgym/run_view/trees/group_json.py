"""A group as files of JSON: its tree and the heads of its turns, and what its turns hold in chunks.

    NAME.js      what is drawn first; a small group is whole in it
    NAME-0.js    the parts of turns, in the order in which rollouts go through them

Not here: tree and rollouts in it (`tree_json.py`, `rollout_json.py`), what draws them (`assets/`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from katgym.run_view.page_frame import short
from katgym.run_view.run_view import GroupView
from katgym.run_view.token_texts import TokenTexts
from katgym.run_view.trees.group_tree import GroupTree, group_tree
from katgym.run_view.trees.rollout_json import Parts, rollout_json
from katgym.run_view.trees.tree_json import MAX_VERTICES, sharing, tree_json, tree_paths

CHUNK_CHARACTERS = 150_000
"""Of JSON in one file of parts; also what a first file holds beside its tree."""


def group_json(
    group: GroupView, texts: TokenTexts | None, reward_range: tuple[float, float]
) -> tuple[dict[str, Any], list[list[Any]]]:
    """Return what the first file holds, and the chunks; without chunks it holds all parts.

    reward_range: ends of the colours' scale.
    """
    tree = group_tree([one.rollout for one in group.rollouts])
    paths, places = tree_paths(tree)
    parts = Parts(texts)
    rollouts = [rollout_json(group, place, parts, places) for place in range(len(group.rollouts))]
    chunks = list(_chunks(parts.parts))
    data = {
        "task": group.task_id,
        "env": group.env_id,
        "step": group.step,
        "untrained": group.untrained,
        "range": list(reward_range),
        "recorded": group.has_advantages,
        "facts": _facts(group, tree),
        "notes": _notes(tree, texts),
        "tree": tree_json(group, tree, texts),
        "paths": paths,
        "rollouts": rollouts,
        "rows": parts.rows,
        "heads": parts.heads,
        "texts": None if texts is None else _texts(group, texts),
        "chunks": [begin for begin, _ in chunks] if len(chunks) > 1 else [],
        "parts": chunks[0][1] if len(chunks) == 1 else [],
    }
    return data, [own for _, own in chunks] if len(chunks) > 1 else []


def _chunks(parts: list[str]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the place of a chunk's first part, and its parts."""
    begin, size = 0, 0
    for place, text in enumerate(parts):
        if size and size + len(text) > CHUNK_CHARACTERS:
            yield begin, [json.loads(one) for one in parts[begin:place]]
            begin, size = place, 0
        size += len(text)
    yield begin, [json.loads(one) for one in parts[begin:]]


def _texts(group: GroupView, texts: TokenTexts) -> dict[str, str]:
    records = [turn.tokens for one in group.rollouts for turn in one.rollout.turns]
    ids = sorted({i for record in records if record is not None for i in record.completion_ids})
    return {str(i): texts.text(i) for i in ids}


def _notes(tree: GroupTree, texts: TokenTexts | None) -> list[str]:
    found = []
    if len(tree.vertices) > MAX_VERTICES:
        found.append(f"The tree has {len(tree.vertices):,} vertices and is not drawn.")
    if tree.is_of_tokens and texts is None:
        found.append("The run's tokenizer was not at hand: tokens are shown as ids.")
    if not tree.is_of_tokens and len(tree.vertices) > 1:
        found.append("The policy recorded no tokens: the tree is merged by whole messages.")
    return found


def _facts(group: GroupView, tree: GroupTree) -> list[list[str]]:
    """Return what is told of the group above its rollouts."""
    told = [
        ("mean reward", short(group.mean_reward, 3)),
        ("pass rate", "" if group.pass_rate is None else f"{100 * group.pass_rate:.0f}%"),
        ("turns", short(group.mean_of("num_turns"), 1)),
        ("parallel calls", short(group.mean_of("num_parallel_calls"), 1)),
    ]
    if tree.is_of_tokens:
        saved = sharing(tree)
        merged = f"{saved.num_tree:,} of {saved.num_flat:,} on all paths"
        told += [("tokens of the tree", merged), ("shared", f"{100 * saved.share:.0f}%")]
    return [[name, value] for name, value in told if value]

"""A group's tree as the JSON that its page's script draws, and what can be said of it in numbers.

Not here: the tree (`group_tree.py`), the rollouts (`rollout_json.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from katgym.run_view.run_view import GroupView, known_mean
from katgym.run_view.token_texts import TokenTexts
from katgym.run_view.trees.group_tree import Cause, GroupTree, Vertex
from katgym.run_view.trees.tree_layout import tree_layout

_NUM_ALTERNATIVE = 8
"""Tokens that are shown of each way on from a fork."""
MAX_VERTICES = 4000
"""A tree of more is not drawn: a browser would take seconds for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What merging saves: symbols of all root-to-leaf paths, and those of the tree."""

    num_flat: int
    num_tree: int

    @property
    def share(self) -> float:
        """Share of the paths' symbols that need not be there."""
        return 1 - self.num_tree / self.num_flat if self.num_flat else 0.0


def tree_json(group: GroupView, tree: GroupTree, texts: TokenTexts | None) -> dict[str, Any]:
    """Return vertices and forks."""
    values = [known_mean([group.rollouts[r].reward for r in v.rollouts]) for v in tree.vertices]
    advantages = [known_mean([group.advantage(r) for r in v.rollouts]) for v in tree.vertices]
    layout = tree_layout(tree, values)
    is_drawn = len(tree.vertices) <= MAX_VERTICES
    return {
        "tokens": tree.is_of_tokens,
        "lanes": layout.num_lanes,
        "height": layout.height,
        "rows": list(layout.rows),
        "vertices": [
            {
                "parent": v.parent, "x": layout.x[v.index], "y": layout.y[v.index],
                "rollouts": list(v.rollouts), "turns": [list(t) for t in v.turns],
                "start": v.start, "num": len(v.symbols), "cause": str(v.cause),
                "reason": v.reason, "depth": v.depth, "value": _rounded(values[v.index]),
                "advantage": _rounded(advantages[v.index]),
            }
            for v in tree.vertices
        ] if is_drawn else [],
        "forks": _forks(tree, texts) if is_drawn else [],
    }  # fmt: skip


def sharing(tree: GroupTree) -> Sharing:
    """Return how much the rollouts of a group share; each leaf of each rollout is a path."""
    paths: dict[int, set[int]] = {}
    for rollout, turn in tree.ends:
        paths.setdefault(rollout, set()).update(tree.path(rollout, turn))
    num_flat = 0
    for own in paths.values():
        inner = {tree.vertices[i].parent for i in own}
        num_flat += sum(tree.vertices[i].end for i in own if i not in inner)
    return Sharing(num_flat=num_flat, num_tree=sum(len(v.symbols) for v in tree.vertices))


def _forks(tree: GroupTree, texts: TokenTexts | None) -> list[dict[str, Any]]:
    """Return where paths part, from the top: the turn, the place in its answer, the ways on."""
    found = []
    for vertex, children in zip(tree.vertices, tree.children(), strict=True):
        if len(children) < 2:
            continue
        below = [tree.vertices[index] for index in children]
        sampled = next((child for child in below if child.cause is Cause.SAMPLED), None)
        # The first turn of a rollout through the vertex whose path holds the vertex's symbols.
        at = sampled or below[0]
        rollout = at.rollouts[0]
        turns = sorted(t for r, t in tree.ends if r == rollout)
        turn = next((t for t in turns if at.index in tree.path(rollout, t)), None)
        offset = None
        if sampled is not None and turn is not None:
            offset = vertex.end - tree.num_prompts[rollout, turn]
        found.append(
            {
                "vertex": vertex.index,
                "turn": turn,
                "offset": offset,
                "ways": [
                    {"vertex": child.index, "text": _way_text(tree, child, texts)}
                    for child in below
                ],
            }
        )
    return found


def _way_text(tree: GroupTree, vertex: Vertex, texts: TokenTexts | None) -> str:
    """Return what a way begins with: text, or token ids where their text is not known."""
    some = vertex.symbols[:_NUM_ALTERNATIVE]
    if not tree.is_of_tokens:
        return tree.messages[some[0]]
    if texts is None:
        return " ".join(map(str, some))
    return texts.joined(some)


def tree_paths(tree: GroupTree) -> tuple[list[list[list[int]]], dict[tuple[int, int], int]]:
    """Return the paths of answers, and (rollout, turn) -> its path's place among them.

    A path is [vertex, place in the answer at which it begins], in order. Of a tree that is not
    drawn there are none.
    """
    found: dict[str, int] = {}
    places = {}
    if len(tree.vertices) <= MAX_VERTICES:
        for (rollout, turn), num_prompt in tree.num_prompts.items():
            path = [tree.vertices[i] for i in tree.path(rollout, turn)]
            own = [[v.index, max(0, v.start - num_prompt)] for v in path if v.end > num_prompt]
            places[rollout, turn] = found.setdefault(json.dumps(own), len(found))
    return [json.loads(text) for text in found], places


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

"""Forests as agent training makes them, by family: how much is shared, and how it branches.

    for family in FAMILIES:
        tree = family.make(random.Random(0))
        plan = TreePlan.build(tree.end())

Lengths are lognormal around the named means. Not here: timing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_SIGMA = 0.6
"""Spread of lengths: standard deviation of their logarithm."""


@dataclass
class Node:
    """A run of tokens, what may follow it, and how many rows end with it."""

    num_tokens: int
    children: list[Node] = field(default_factory=list)
    num_rows: int = 0

    def add(self, num_tokens: int, *, num_rows: int = 0) -> Node:
        """Add and return a child."""
        child = Node(num_tokens=num_tokens, num_rows=num_rows)
        self.children.append(child)
        return child


@dataclass(frozen=True)
class Tree:
    """One tree of rows.

    Example:
        Tree(Node(3, [Node(2, num_rows=1), Node(4, num_rows=1)]))
    """

    root: Node

    def end(self) -> list[int]:
        """Return one past the last descendant of each token, in depth-first order."""
        found: list[int] = []
        for start, node, stop in self._walk():
            assert start == len(found)
            found += [stop] * node.num_tokens
        return found

    def row_lengths(self) -> list[int]:
        """Return the length of each row."""
        return [sum(stop - start for start, stop in row) for row in self.rows()]

    def shrunk(self, factor: int) -> Tree:
        """Return the same branches with lengths divided by a factor, at least 1."""

        def divided(node: Node) -> Node:
            return Node(max(1, node.num_tokens // factor), num_rows=node.num_rows)

        root = divided(self.root)
        stack = [(self.root, root)]
        while stack:
            node, copy = stack.pop()
            copy.children = [divided(child) for child in node.children]
            stack += zip(node.children, copy.children, strict=True)
        return Tree(root)

    def rows(self) -> list[list[tuple[int, int]]]:
        """Return each row as runs [start, stop) of packed tokens, from the root on."""
        found: list[list[tuple[int, int]]] = []
        open_: list[tuple[int, tuple[int, int]]] = []
        for start, node, stop in self._walk():
            while open_ and open_[-1][0] <= start:
                open_.pop()
            open_.append((stop, (start, start + node.num_tokens)))
            found += [[run for _, run in open_]] * node.num_rows
        return found

    def _walk(self) -> Iterator[tuple[int, Node, int]]:
        """Yield (start, node, end of its subtree) in depth-first order."""
        sizes: dict[int, int] = {}
        order: list[Node] = []
        stack = [self.root]
        while stack:
            node = stack.pop()
            order.append(node)
            stack += reversed(node.children)
        for node in reversed(order):
            sizes[id(node)] = node.num_tokens + sum(sizes[id(c)] for c in node.children)
        start = 0
        for node in order:
            yield start, node, start + sizes[id(node)]
            start += node.num_tokens


@dataclass(frozen=True)
class Family:
    """A way in which rows share prefixes."""

    name: str
    make: Callable[[random.Random], Tree]
    is_branching: bool = True


def _length(rng: random.Random, mean: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA)))


def group(num: int, prompt: int, answer: int) -> Callable[[random.Random], Tree]:
    """Return a maker of GRPO groups: answers to one prompt."""

    def make(rng: random.Random) -> Tree:
        root = Node(prompt)
        for _ in range(num):
            root.add(_length(rng, answer), num_rows=1)
        return Tree(root)

    return make


def step_rows(
    num_rollouts: int, num_steps: int, *, prompt: int = 2048, is_thinking_kept: bool = False
) -> Callable[[random.Random], Tree]:
    """Return a maker of rollouts, one row a step.

    A step is thinking (300 tokens), an action (100), an observation (400). Thinking of earlier
    steps is stripped from the prompt, so that each step's own is a side branch; or it is kept, and
    every row begins the next.
    """

    def make(rng: random.Random) -> Tree:
        root = Node(prompt)
        for _ in range(num_rollouts):
            context = root
            for _ in range(num_steps):
                thinking, action, observation = (_length(rng, m) for m in (300, 100, 400))
                answer = context.add(thinking + action, num_rows=1)
                if is_thinking_kept:
                    context = answer.add(observation)
                else:
                    context = context.add(action + observation)
        return Tree(root)

    return make


def binary(depth: int, segment: int) -> Callable[[random.Random], Tree]:
    """Return a maker of binary search trees of so many levels below the root."""

    def make(rng: random.Random) -> Tree:
        root = Node(segment)
        level = [root]
        for number in range(depth):
            is_last = number == depth - 1
            level = [
                node.add(_length(rng, segment), num_rows=int(is_last))
                for node in level
                for _ in range(2)
            ]
        return Tree(root)

    return make


def compaction(
    num_steps: int, every: int, *, prompt: int = 2048
) -> Callable[[random.Random], Tree]:
    """Return a maker of one rollout whose context is replaced by a summary every so many steps."""

    def make(rng: random.Random) -> Tree:
        root = Node(prompt)
        context = root
        for number in range(num_steps):
            if number and number % every == 0:
                context = root.add(_length(rng, 600))
            answer = context.add(_length(rng, 400), num_rows=1)
            context = answer.add(_length(rng, 400))
        return Tree(root)

    return make


FAMILIES = (
    Family("grpo n=8 prompt 0.5k answers 1k", group(8, 512, 1024)),
    Family("grpo n=16 prompt 4k answers 1k", group(16, 4096, 1024)),
    Family("grpo n=16 prompt 16k answers 1k", group(16, 16384, 1024)),
    Family("grpo n=8 prompt 4k answers 8k", group(8, 4096, 8192)),
    Family("8 rollouts x 20 step rows", step_rows(8, 20)),
    Family("1 rollout, 30 step rows, thinking stripped", step_rows(1, 30)),
    Family("binary search tree, 6 levels of 0.5k", binary(6, 512)),
    Family("40 steps, compaction every 10", compaction(40, 10)),
    Family("30 steps, append only", step_rows(1, 30, is_thinking_kept=True)),
    Family("8 rows, nothing shared", group(8, 1, 4096), is_branching=False),
)

"""Attention over a packed forest: one function, several backends. See README.md of `kernels/`."""

from katgym_kernels.attention.tree_attention import BACKENDS, tree_attention

__all__ = ["BACKENDS", "tree_attention"]

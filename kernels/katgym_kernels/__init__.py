"""Tree attention: one forward and backward for all token paths that share prefixes."""

from katgym_kernels.attention import tree_attention
from katgym_kernels.tree_plan import TreePlan

__all__ = ["TreePlan", "tree_attention"]

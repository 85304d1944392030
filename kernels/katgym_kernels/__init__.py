"""Attention over token paths that share prefixes, and log-probs of their edges."""

from katgym_kernels.attention import tree_attention
from katgym_kernels.edge_logprobs import edge_logprobs
from katgym_kernels.tree_plan import TreePlan

__all__ = ["TreePlan", "edge_logprobs", "tree_attention"]

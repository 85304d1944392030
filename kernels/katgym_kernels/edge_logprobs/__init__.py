"""Log-probs and entropies of chosen tokens without the logits of all tokens."""

from katgym_kernels.edge_logprobs.edge_logprobs import edge_logprobs

__all__ = ["edge_logprobs"]

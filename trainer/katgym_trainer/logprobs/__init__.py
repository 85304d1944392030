"""Log-probs of a reference and of the trainer before a step, computed once."""

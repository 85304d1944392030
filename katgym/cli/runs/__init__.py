"""Commands that make, compare and show runs of evaluations."""

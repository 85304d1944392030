"""MathProblems-v1: written problems from a file, graded by the mathematics verifier."""

"""MathProblems-v0: written problems from a file, graded by the mathematics verifier."""

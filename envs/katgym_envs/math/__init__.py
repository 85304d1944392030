"""The mathematics domain: procedural arithmetic, written problems, and the answer verifier."""

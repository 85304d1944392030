"""Decides whether a final answer equals the gold answer, without trusting its text.

    verifier = shared_verifier()
    verifier.verify(r"\\frac{1}{2}", "0.5")    # Verdict(is_correct=True, method="exact", ...)

Not here: the problems (`katgym_envs.math.problems`).
"""

from katgym_envs.math.verifier.extraction import Extraction, extract_final_answer
from katgym_envs.math.verifier.verdict import Method, Verdict, VerifierUnavailable
from katgym_envs.math.verifier.verifier import Verifier, shared_verifier

__all__ = [
    "Extraction",
    "Method",
    "Verdict",
    "Verifier",
    "VerifierUnavailable",
    "extract_final_answer",
    "shared_verifier",
]

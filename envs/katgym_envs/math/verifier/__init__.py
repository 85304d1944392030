"""Decides whether a final answer equals the gold answer, without trusting its text.

    verifier = get_shared_verifier()
    verifier.verify(r"\\frac{1}{2}", "0.5")    # AnswerVerdict(is_correct=True, method="exact", ...)

Not here: the problems (`katgym_envs.math.problems`).
"""

from katgym_envs.math.verifier.extraction import Extraction, extract_final_answer
from katgym_envs.math.verifier.verdict import AnswerVerdict, Method, VerifierUnavailable
from katgym_envs.math.verifier.verifier import Verifier, get_shared_verifier

__all__ = [
    "AnswerVerdict",
    "Extraction",
    "Method",
    "Verifier",
    "VerifierUnavailable",
    "extract_final_answer",
    "get_shared_verifier",
]

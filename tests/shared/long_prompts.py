"""An env whose prompts are longer than a vLLM server's batch is by default (2,048 tokens).

With a tokenizer of bytes: each character is a token at least.
"""

from __future__ import annotations

import katgym

MAX_TOKENS = 4096
"""That prompt and answer fit into."""


class LongPromptEnv(katgym.Env):
    """Pays for the share of an answer's characters with even numbers; its prompts are of 2,100 to
    3,000 characters."""

    def load_tasks(self, split: str) -> list[katgym.Task]:
        texts = [f"Say {i}! " + "Read on. " * (230 + 12 * i) for i in range(8)]
        return [katgym.Task(task_id=f"{split}-{i}", prompt=text) for i, text in enumerate(texts)]

    @katgym.scorer()
    def share_of_even_characters(self) -> float:
        """Characters whose code points are even, over all."""
        answer = self.final_answer
        return sum(ord(c) % 2 == 0 for c in answer) / max(1, len(answer))

    def oracle_action(self) -> katgym.Action:
        return "02468"

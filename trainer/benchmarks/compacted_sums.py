"""A task whose rollouts branch: sums of numbers that come one by one, with compacted contexts.

    START PLUS SUM END | PLUS 4 -> 4 END | PLUS 5 -> 9 END
    START PLUS SUM END | SUM 9 END PLUS 3 -> 1 2 END | PLUS 5 -> 1 7 END
    START PLUS SUM END | SUM 1 7 END PLUS 4 -> 2 1 END

A model reads a number a turn and writes the total so far. After every second number the context is
replaced by the system part and a summary, which is what the model wrote last, right or wrong; so
each line above is a path of one rollout. Only the last total is rewarded, if it is right. Of the
carries in right totals 77 % stand on the longest path of a rollout, 39 % on the last.
Not here: training (`branch_ablations.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from katgym import Reward, Rollout, RolloutGroup, RolloutStatus, Sampling, assistant, user
from katgym.play.rollout import Turn
from katgym.policies.base import BranchReason, TokenRecord

PLUS, END, SUM, START = 10, 11, 12, 13
SYSTEM = (START, PLUS, SUM, END)
MAX_NUMBER = 5
LENGTHS = (3, 4, 5)
NUMBERS_PER_PATH = 2
MAX_REPLY = 3
Task = tuple[int, ...]


def make_model(seed: int, *, hidden: int = 64) -> Any:
    """Return a model with random weights; 0.1 M of them by default."""
    config = transformers.Qwen3Config(
        vocab_size=14, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=32,
        tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(seed)
    return transformers.Qwen3ForCausalLM(config).float()


def drawn_tasks(num: int, rng: random.Random) -> list[Task]:
    """Return different lists of numbers."""
    found: dict[Task, None] = {}
    while len(found) < num:
        found[tuple(rng.randint(1, MAX_NUMBER) for _ in range(rng.choice(LENGTHS)))] = None
    return list(found)


def digits(number: int) -> list[int]:
    """Return a number's tokens, without leading zeros."""
    return [int(digit) for digit in str(number)]


@dataclass(slots=True, kw_only=True)
class Episode:
    """One list of numbers while it is played."""

    task: Task
    name: str
    turns: list[TokenRecord] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    """All tokens of the path so far."""

    @property
    def is_over(self) -> bool:
        """Whether every number was read."""
        return len(self.turns) == len(self.task)

    def ask(self) -> list[int]:
        """Return the prompt of the next turn."""
        place = len(self.turns)
        number = [PLUS, *digits(self.task[place])]
        if place % NUMBERS_PER_PATH:
            return self.context + number
        summary = [SUM, *self.turns[-1].completion_ids] if place else []
        return [*SYSTEM, *summary, *number]

    def answer(
        self, prompt: Sequence[int], reply: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Keep what was written, as a delta to the turn before or, compacted, to the first."""
        place = len(self.turns)
        is_new = place % NUMBERS_PER_PATH == 0
        shared = 0 if not place else len(SYSTEM) if is_new else len(self.context)
        self.turns.append(
            TokenRecord(
                parent=None if not place else 0 if is_new else place - 1,
                num_shared=shared,
                prompt_ids=prompt[shared:],
                completion_ids=reply,
                policy_logprobs=logprobs,
                branch=BranchReason.COMPACTION if place and is_new else None,
            )
        )
        self.context = [*prompt, *reply]

    @property
    def reward(self) -> float:
        """1 if the last total is right."""
        return float(list(self.turns[-1].completion_ids) == [*digits(sum(self.task)), END])

    def rollout(self) -> Rollout:
        """Return the record of the episode, as an agent loop leaves it."""
        turns = []
        for number, record in zip(self.task, self.turns, strict=True):
            turns.append(
                Turn(
                    messages=[user(str(number))], num_shared_messages=2 * len(turns),
                    answer=assistant(" ".join(map(str, record.completion_ids))), tokens=record,
                    num_prompt_tokens=record.num_shared + len(record.prompt_ids),
                    num_completion_tokens=len(record.completion_ids),
                )
            )  # fmt: skip
        return Rollout(
            env_id="benchmarks/CompactedSums-v0", plugin_version="0", policy="tiny",
            task_id="+".join(map(str, self.task)), task_sha256="", split="train", seed=None,
            attempt=0, episode_id=self.name, seat="player", status=RolloutStatus.TERMINATED,
            reward=Reward(value=self.reward), turns=turns,
            sampling=Sampling(max_tokens=MAX_REPLY),
        )  # fmt: skip


@torch.no_grad()
def replies(
    model: Any, prompts: Sequence[Sequence[int]], *, rng: torch.Generator | None
) -> list[tuple[list[int], list[float]]]:
    """Return a reply to each prompt with its log-probs; rng None: the likeliest tokens.

    Equal contexts are computed once. Padding stands at the end, where causal attention has none.
    """
    found: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    for _ in range(MAX_REPLY):
        going = [i for i, (reply, _) in enumerate(found) if reply[-1:] != [END]]
        if not going:
            break
        contexts = [(*prompts[i], *found[i][0]) for i in going]
        place = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
        ids = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, place)), batch_first=True)
        last = torch.tensor([len(context) - 1 for context in place])
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        unique = model.lm_head(hidden[torch.arange(len(ids)), last]).log_softmax(-1)
        logp = unique[[place[context] for context in contexts]]
        chosen = logp.argmax(-1) if rng is None else torch.multinomial(
            logp.exp(), 1, generator=rng
        )[:, 0]  # fmt: skip
        known = logp.gather(1, chosen[:, None])[:, 0].clamp(max=0)
        for i, token, logprob in zip(going, chosen.tolist(), known.tolist(), strict=True):
            found[i][0].append(token)
            found[i][1].append(logprob)
    return found


def play(model: Any, episodes: Sequence[Episode], *, rng: torch.Generator | None) -> None:
    """Play episodes to their ends, turn by turn side by side."""
    while going := [episode for episode in episodes if not episode.is_over]:
        prompts = [episode.ask() for episode in going]
        for episode, prompt, (reply, logprobs) in zip(
            going, prompts, replies(model, prompts, rng=rng), strict=True
        ):
            episode.answer(prompt, reply, logprobs)


def sampled_groups(
    model: Any, tasks: Sequence[Task], *, group_size: int, rng: torch.Generator
) -> list[RolloutGroup]:
    """Return groups of rollouts that a model samples."""
    num = len(tasks) * group_size
    episodes = [Episode(task=tasks[i // group_size], name=str(i)) for i in range(num)]
    play(model, episodes, rng=rng)
    rollouts = [episode.rollout() for episode in episodes]
    return [
        RolloutGroup(rollouts=rollouts[start : start + group_size])
        for start in range(0, num, group_size)
    ]


def success(model: Any, tasks: Sequence[Task], *, rng: torch.Generator | None) -> float:
    """Return the share of lists whose last total is right; rng None: of the likeliest tokens."""
    episodes = [Episode(task=task, name="") for task in tasks]
    play(model, episodes, rng=rng)
    return sum(episode.reward for episode in episodes) / len(episodes)


def taught_rollout(task: Task, name: str, *, forgets: float, rng: random.Random) -> Rollout:
    """Return a teacher's rollout; forgets: chance that it loses a carry, and goes on from there."""
    episode = Episode(task=task, name=name)
    total = 0
    for number in task:
        has_carry = total % 10 + number >= 10
        total += number - 10 * (has_carry and rng.random() < forgets)
        reply = [*digits(total), END]
        episode.answer(episode.ask(), reply, [])
    return episode.rollout()

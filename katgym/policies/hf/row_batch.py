"""The requests that run: prefilled together, decoded together, their keys and values side by side.

Each row's numbers depend on its neighbours only by the rounding of matrix products of another batch
size and, by how the prefix was computed, of other groupings of tokens (about 1e-6 in fp32, more in
bf16); with `is_batch_invariant` they do not.

Not here: who runs next (`hf_engine.py`), what is copied from whom (`prefill_plan.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from katgym.policies.hf.cpu_attention import BLOCK, INVARIANT, ROW_STEP, use_decode_attention
from katgym.policies.hf.hf_request import Request
from katgym.policies.hf.known_prefixes import CachedPrefix, PrefixCache, PrefixIndex
from katgym.policies.hf.kv_slots import SlotCache
from katgym.policies.hf.prefill_plan import PlannedRequest, PrefillPlan
from katgym.policies.hf.sampler import sample_tokens

_MAX_PARAMETERS, _MAX_OPERATIONS = 4_000_000, 7e8
"""Of a model and a forward that one thread computes: weights that its cache holds, about 10 ms."""


@contextlib.contextmanager
def compute_threads(num_parameters: int, num_tokens: int, *, usual: int) -> Iterator[None]:
    """Compute with one thread what is less work than to wake others for every operation.

    usual: threads of all else. Products of the process's other threads are computed with one, too,
    meanwhile, and a thread that calls torch for the first time within keeps to one.
    """
    is_short = 2 * num_parameters * num_tokens <= _MAX_OPERATIONS
    torch.set_num_threads(1 if num_parameters <= _MAX_PARAMETERS and is_short else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


class RowBatch:
    """One model's running requests, `rows[i]` in slot i; used by one thread."""

    def __init__(
        self,
        model: Any,
        *,
        max_cached_tokens: int,
        max_prefill_tokens: int,
        is_batch_invariant: bool = False,
    ) -> None:
        if is_batch_invariant:
            model.set_attn_implementation(INVARIANT)
        else:
            use_decode_attention(model)
        self.model = model
        self._row_step, self._column_step = (ROW_STEP, BLOCK) if is_batch_invariant else (1, 1)
        self._num_threads = torch.get_num_threads()  # not of a thread that begins beside a round
        self._num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.max_cached_tokens = max_cached_tokens
        self.max_prefill_tokens = max_prefill_tokens
        self.rows: list[Request] = []
        self.num_prefilled = 0
        """Prompt tokens computed; those reused from a prefix are not in it."""
        self.num_reused = 0
        """Prompt tokens whose keys and values were copied."""
        self.num_decoded = 0
        """Tokens fed back one by one."""
        self.forget()

    def forget(self) -> None:
        """Drop all keys and values, those of running requests too; they leave without an answer."""
        for row in self.rows:
            row.pause()
        self.rows.clear()
        self._slots = SlotCache(self.model.config.get_text_config().num_hidden_layers)
        self._index: PrefixIndex[Request | CachedPrefix] = PrefixIndex()
        self.kept = PrefixCache(self.max_cached_tokens)

    @property
    def max_length(self) -> int:
        """Tokens that the longest row may have in the end; 0 without rows."""
        return max((row.max_length for row in self.rows), default=0)

    def plan(self) -> PrefillPlan:
        """Return an empty plan that knows what can be copied."""
        return PrefillPlan(self._index)

    def prefill(self, plan: PrefillPlan) -> None:
        """Make rows of the planned requests and sample one token for each."""
        forwards = list(plan.forwards(self.max_prefill_tokens))
        for entry in (entry for forward in forwards for entry in forward):
            entry.request.slot = len(self.rows)
            self.rows.append(entry.request)
            self.num_reused += entry.num_known
            self.num_prefilled += entry.num_new
        self._reserve()
        for forward in forwards:
            self._copy_known(forward)
            self._forward([entry.request for entry in forward])
        for entry in plan.entries:
            request = entry.request
            self._index.add(request.ids[: request.num_prompt], request)

    def decode(self) -> None:
        """Sample one token for every row."""
        self.num_decoded += len(self.rows)
        self._reserve()
        self._forward(self.rows)

    def take_finished(self) -> list[Request]:
        """Remove the rows that are complete and return them; what they computed is kept."""
        finished = [row for row in self.rows if row.finish_reason is not None]
        for row in finished:
            length = row.num_cached
            self.release(row.session_id)
            if not self.kept.has_room(length):
                continue
            stored = self._slots.take(row.slot, length)
            kept = CachedPrefix(session_id=row.session_id, ids=row.ids[:length], stored=stored)
            self._index.add(kept.ids, kept)
            for gone in self.kept.add(kept):
                self._index.remove(gone.ids, gone)
        self._leave(finished)
        return finished

    def drop(self, requests: Sequence[Request]) -> None:
        """Remove the rows of requests whose callers are gone; those that do not run stay away."""
        self._leave([row for row in requests if row.slot >= 0])

    def release(self, session_id: str) -> None:
        """Forget what was kept for a session."""
        for kept in self.kept.remove(session_id):
            self._index.remove(kept.ids, kept)

    def _reserve(self) -> None:
        num_slots = len(self.rows) + self._row_step - 1  # a forward of some rows reads beyond them
        self._slots.reserve(num_slots, max((len(row.ids) for row in self.rows), default=0))

    def _copy_known(self, forward: Sequence[PlannedRequest]) -> None:
        sources, targets, num_columns = [], [], 0
        for entry in forward:
            entry.request.num_cached = entry.num_known
            if isinstance(entry.source, CachedPrefix):
                self._slots.put(entry.request.slot, entry.source.stored, entry.num_known)
            elif entry.source is not None:
                sources.append(entry.source.slot)
                targets.append(entry.request.slot)
                num_columns = max(num_columns, entry.num_known)
        if sources:
            self._slots.copy_rows(sources, targets, num_columns)

    def _forward(self, rows: Sequence[Request]) -> None:
        """Feed the tokens of neighbouring rows that are not in their slots; sample one for each."""
        num_new = sum(len(row.ids) - row.num_cached for row in rows)
        with compute_threads(self._num_parameters, num_new, usual=self._num_threads):
            sampled = self._sample(rows)
        for row, token, logprob in sampled:
            row.num_cached = len(row.ids)
            row.ids.append(token)
            row.logprobs.append(logprob)

    def _sample(self, rows: Sequence[Request]) -> list[tuple[Request, int, float]]:
        """Return rows, each with its next token and that one's log-probability."""
        lengths = [row.num_cached for row in rows]
        counts = [len(row.ids) - row.num_cached for row in rows]
        width = max(counts)
        news = [[0] * (width - num) + row.ids[-num:] for row, num in zip(rows, counts, strict=True)]
        for _ in range(-len(rows) % self._row_step):  # rows of padding alone, which write nothing
            lengths.append(0)
            counts.append(0)
            news.append([0] * width)
        new_BQ = torch.tensor(news)
        model = self.model
        mask, position_BQ = self._slots.aim(
            rows[0].slot, lengths, counts,
            column_step=self._column_step, device=model.device, dtype=model.dtype,
        )  # fmt: skip
        output = model(
            input_ids=new_BQ.to(model.device),
            attention_mask=mask,
            position_ids=position_BQ,
            past_key_values=self._slots.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        tokens, logprobs = sample_tokens(
            output.logits[: len(rows), -1],
            [row.sampling for row in rows],
            [row.uniforms for row in rows],
        )
        return list(zip(rows, tokens, logprobs, strict=True))

    def _leave(self, gone: Sequence[Request]) -> None:
        """Free slots; the last rows move into them, so that rows stay side by side."""
        if not gone:
            return
        num_left = len(self.rows) - len(gone)
        holes = [row.slot for row in gone if row.slot < num_left]
        for row in gone:
            self._index.remove(row.ids[: row.num_prompt], row)
            row.pause()
        moving = [row for row in self.rows[num_left:] if row.slot >= 0]
        if moving:
            num_columns = max(row.num_cached for row in moving)
            self._slots.copy_rows([row.slot for row in moving], holes, num_columns)
        for row, slot in zip(moving, holes, strict=True):
            row.slot = slot
            self.rows[slot] = row
        del self.rows[num_left:]

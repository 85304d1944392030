"""Attention of one query a row, beside transformers' own."""

from __future__ import annotations

import itertools
import types

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from katgym.policies.hf import cpu_attention

ROWS, COLUMNS, SIZE = 5, 37, 16


def drawn(num_heads, num_shared, num_queries, dtype=torch.float32):
    """Return a module, query, key, value and mask; each row sees columns of its own."""
    generator = torch.Generator().manual_seed(num_heads * 100 + num_queries)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    key, value = (normal(ROWS, num_shared, 64, SIZE)[:, :, :COLUMNS] for _ in range(2))
    query = normal(ROWS, num_queries, num_heads, SIZE).transpose(1, 2)
    length = torch.arange(COLUMNS - ROWS, COLUMNS)[:, None, None]
    is_hidden = (torch.arange(COLUMNS) > length).expand(ROWS, num_queries, COLUMNS)
    mask = torch.zeros(ROWS, 1, num_queries, COLUMNS, dtype=dtype)
    mask.masked_fill_(is_hidden[:, None], torch.finfo(dtype).min)
    module = types.SimpleNamespace(num_key_value_groups=num_heads // num_shared, is_causal=True)
    return module, query, key, value, mask


def test_one_query_a_row_attends_as_sdpa_does():
    attend = AttentionInterface()[cpu_attention.DECODE]
    for heads, scaling in itertools.product(((4, 4), (4, 2), (6, 1)), (None, 0.5)):
        given = drawn(*heads, 1)
        own, weights = attend(*given, scaling=scaling, dropout=0.0)
        expected, _ = sdpa_attention_forward(*given, scaling=scaling, dropout=0.0)
        assert weights is None and own.shape == expected.shape == (ROWS, 1, heads[0], SIZE)
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-6)


def test_the_invariant_attention_attends_as_sdpa_does(monkeypatch):
    attend = AttentionInterface()[cpu_attention.INVARIANT]
    for num_queries, max_scores in itertools.product((1, 3, 63), (1, 1000, 10**7)):
        monkeypatch.setattr(cpu_attention, "_MAX_SCORES", max_scores)
        module, query, *pairs, mask = drawn(6, 2, num_queries)
        key, value = (torch.nn.functional.pad(each, (0, 0, 0, 128 - COLUMNS)) for each in pairs)
        mask = torch.nn.functional.pad(mask, (0, 128 - COLUMNS), value=torch.finfo(mask.dtype).min)
        own, _ = attend(module, query, key, value, mask)
        expected, _ = sdpa_attention_forward(module, query, key, value, mask)
        torch.testing.assert_close(own, expected, rtol=0, atol=2e-6)


def test_all_else_is_left_to_sdpa():
    for num_queries, dtype in ((3, torch.float32), (1, torch.bfloat16)):
        given = drawn(4, 2, num_queries, dtype)
        own, _ = AttentionInterface()[cpu_attention.DECODE](*given, scaling=0.5)
        assert torch.equal(own, sdpa_attention_forward(*given, scaling=0.5)[0])


def test_models_with_an_attention_of_their_own_keep_it(model):
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")
        cpu_attention.use_decode_attention(model)
        assert model.config._attn_implementation == "eager"
        model.set_attn_implementation("sdpa")
        cpu_attention.use_decode_attention(model)
        assert model.config._attn_implementation == cpu_attention.DECODE
    finally:
        model.set_attn_implementation(before)


def test_whoever_else_runs_the_model_gets_the_same(model):
    """`generate` and a forward without a cache make masks of their own."""
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    before = model.config._attn_implementation
    try:
        found = []
        for name in ("sdpa", cpu_attention.DECODE):
            model.set_attn_implementation(name)
            with torch.no_grad():
                logits = model(ids).logits
            texts = model.generate(ids, max_new_tokens=6, do_sample=False)
            found.append((logits, texts))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-5)
        assert torch.equal(found[0][1], found[1][1])
    finally:
        model.set_attn_implementation(before)

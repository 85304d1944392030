"""The Triton kernels compute what the reference computes; without a GPU in the interpreter."""

from __future__ import annotations

import importlib
import mmap
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forests import AWKWARD, ends, fork_at, random_end
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import IS_NIGHT
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.triton_check import HEAD_SIZES

triton_attention = pytest.importorskip(
    "katgym_kernels.attention.triton_kernels.launch", reason="needs triton"
)
kernel_configs = importlib.import_module("katgym_kernels.attention.triton_kernels.configs")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def config(
    block_m: int, block_n: int, max_query_tiles: int = 64, max_extra_parts: int = 1024
) -> Any:
    tiles = kernel_configs.KernelConfig(block_m=block_m, block_n=block_n, num_warps=4, num_stages=1)
    return kernel_configs.TritonConfig(
        forward=tiles, keys=tiles, queries=tiles, max_query_tiles=max_query_tiles,
        max_extra_parts=max_extra_parts,
    )  # fmt: skip


SMALL = config(16, 16)


def draw(
    num: int, heads: int, key_heads: int, size: int, *, sinks: bool = False, above: int = 0
) -> list[Tensor]:
    """Return q, k, v, the gradient of the output, and sinks if asked for."""
    rng = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(heads, num - above, size), (key_heads, num, size)]
    shapes += [shapes[1], shapes[0]] + ([(heads,)] if sinks else [])
    return [torch.randn(*shape, generator=rng).to(DEVICE) for shape in shapes]


def played(run: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Return the output and the gradients of q, k, v and sinks."""
    q, k, v, grad, *sinks = inputs
    leaves = [t.clone().requires_grad_() for t in (q, k, v, *sinks)]
    out = run(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def check(
    plan: TreePlan, inputs: list[Tensor], chosen: Any = SMALL, *, allowed: float = 2e-6, **more: Any
) -> None:
    def reference(q: Tensor, k: Tensor, v: Tensor, *sinks: Tensor) -> Tensor:
        given = {"sinks": sinks[0]} if sinks else {}
        return tree_attention(q, k, v, plan, backend="reference", **given, **more)

    def kernels(q: Tensor, k: Tensor, v: Tensor, *sinks: Tensor) -> Tensor:
        q = F.pad(q, (0, 0, plan.num_above, 0))  # as tree_attention does
        out = triton_attention.triton_attention(
            q, k, v, plan, scale=q.shape[-1] ** -0.5, sinks_H=sinks[0] if sinks else None,
            config=chosen, **more,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        return out[:, plan.num_above :]

    wanted = played(reference, [t.double() for t in inputs])
    found = played(kernels, inputs)
    least = 0.5 * float(inputs[3].norm())
    for name, x, y in zip(("out", "dq", "dk", "dv", "dsinks"), found, wanted, strict=False):
        assert x.isfinite().all(), name
        error = float((x.double() - y).norm()) / max(float(y.norm()), least)
        assert error <= allowed, (name, error)


@pytest.mark.slow
@given(
    end=ends(max_size=48),
    heads=st.sampled_from([(1, 1), (2, 1), (3, 3)]),
    blocks=st.sampled_from([(16, 16), (32, 16), (16, 32)]),
    window=st.none() | st.integers(1, 12),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    share=st.sampled_from([0.0, 0.3, 0.7]),
    extra=st.sampled_from([1, 3, 1024]),
)
@settings(max_examples=12)
def test_random_forests_with_every_option(
    end: list[int],
    heads: tuple[int, int],
    blocks: tuple[int, int],
    window: int | None,
    softcap: float | None,
    sinks: bool,
    share: float,
    extra: int,
) -> None:
    above = int(share * len(end))
    plan = TreePlan.build(end, window=window, num_above=above, device=DEVICE)
    inputs = draw(len(end), *heads, 16, sinks=sinks, above=above)
    check(plan, inputs, config(*blocks, 2, extra), softcap=softcap)


def test_awkward_forests(subtests: pytest.Subtests) -> None:
    by_day = {"one row", "forked at token 0", "two trees", "padding"}
    by_night = AWKWARD.keys() - {"leaves of one token"}
    for name in sorted(by_night if IS_NIGHT else by_day):
        with subtests.test(name):
            plan = TreePlan.build(AWKWARD[name], device=DEVICE)
            check(plan, draw(len(plan), 2, 1, 16))


@pytest.mark.slow
def test_a_fork_at_every_packed_index_of_a_tile() -> None:
    for blocks in ((16, 16), (16, 32), (32, 16)):
        for fork in range(2, 70):
            plan = TreePlan.build(fork_at(fork, 80), device=DEVICE)
            check(plan, draw(80, 1, 1, 16), config(*blocks))


@pytest.mark.slow
def test_forks_at_the_end_of_a_tile_of_the_default_size() -> None:
    for fork in (57, 60, 63, 64, 65):
        plan = TreePlan.build(fork_at(fork, 140), device=DEVICE)
        check(plan, draw(140, 1, 1, 64), config(64, 64))


@pytest.mark.slow
def test_a_deep_caterpillar_and_a_thousand_leaves() -> None:
    for end in ([1000 if i % 2 == 0 else i + 1 for i in range(1000)], [1001, *range(2, 1002)]):
        plan = TreePlan.build(end, device=DEVICE)
        check(plan, draw(len(end), 1, 1, 16), config(64, 64, max_query_tiles=3))


@pytest.mark.slow
def test_head_sizes_through_the_public_function(subtests: pytest.Subtests) -> None:
    for size in HEAD_SIZES:
        with subtests.test(size=size):
            plan = TreePlan.build(random_end(random.Random(size), 70), device=DEVICE)
            q, k, v, *_ = draw(70, 2, 1, size)
            wanted = tree_attention(q, k, v, plan, backend="reference")
            found = tree_attention(q, k, v, plan, backend="triton")
            assert float((found - wanted).norm() / wanted.norm()) <= 2e-6


def test_half_precision_is_as_good_as_eager() -> None:
    plan = TreePlan.build(random_end(random.Random(3), 60, chain=0.9), device=DEVICE)
    # Triton's interpreter multiplies the bits of bfloat16 as integers.
    for dtype in (torch.float16,) if DEVICE == "cpu" else (torch.float16, torch.bfloat16):
        inputs = [t.to(dtype) for t in draw(60, 2, 1, 32)]

        def run(backend: str, tensors: list[Tensor]) -> list[Tensor]:
            return played(
                lambda q, k, v: (
                    triton_attention.triton_attention(q, k, v, plan, scale=32**-0.5, config=SMALL)
                    if backend == "triton"
                    else tree_attention(q, k, v, plan, backend=backend)
                ),
                tensors,
            )

        wanted = run("reference", [t.double() for t in inputs])
        for x, base, y in zip(run("triton", inputs), run("sdpa", inputs), wanted, strict=True):
            error, eager = (float((t.double() - y).norm()) for t in (x, base))
            assert error <= 2 * eager


def test_nothing_leaks_and_two_runs_are_the_same_bits() -> None:
    end = [20, 12, *([12] * 10), *([20] * 8), *([33] * 13)]
    plan = TreePlan.build(end, device=DEVICE)
    q, k, v, *_ = draw(33, 1, 1, 16)

    def run(k: Tensor, v: Tensor) -> Tensor:
        out = triton_attention.triton_attention(q, k, v, plan, scale=0.25, config=SMALL)
        assert isinstance(out, Tensor)
        return out

    before = run(k, v)
    assert torch.equal(before, run(k, v))
    for changed in (0, 1, 11, 12, 19, 20, 32):
        other_k, other_v = k.clone(), v.clone()
        other_k[:, changed] += 1
        other_v[:, changed] -= 1
        after = run(other_k, other_v)
        for i in range(33):
            is_seen = changed <= i < end[changed]
            assert torch.equal(after[:, i], before[:, i]) != is_seen, (changed, i)


def test_parts_cover_each_range_once_in_order() -> None:
    plan = TreePlan.build(random_end(random.Random(4), 200, chain=0.95))
    tiles = plan.tiles(8, 16)
    parts = triton_attention.key_parts(plan, 8, 16, 3, 1000)
    covered: dict[int, list[int]] = {}
    *lists, _, offsets = (t.tolist() for t in parts.lists())
    for index, (tile, first, inner, outer, stop) in enumerate(zip(*lists, strict=True)):
        assert offsets[tile] <= index < offsets[tile + 1]
        assert first <= inner <= outer <= stop and stop - first <= 3
        covered.setdefault(tile, []).extend(range(first, stop))
        for query in range(inner, outer):  # needs no mask
            assert query * 8 >= tile * 16 + 15 and (query + 1) * 8 <= int(tiles.min_end[tile])
    for tile, found in covered.items():
        assert found == list(range(tile * 16 // 8, -(-int(tiles.max_end[tile]) // 8)))
    assert sorted(covered) == list(range(13))


def test_with_a_window_parts_hold_no_tile_that_lies_beyond_it() -> None:
    plan = TreePlan.build([400] * 100 + [250] * 150 + [400] * 150, window=50)
    tiles = plan.tiles(8, 16)
    parts = triton_attention.key_parts(plan, 8, 16, 2, 1000)
    key_tiles, firsts, full_firsts, full_stops, stops, query_tiles, _ = (
        t.tolist() for t in parts.lists()
    )
    visited, full = set(), set()
    for tile, first, inner, outer, stop in zip(
        key_tiles, firsts, full_firsts, full_stops, stops, strict=True
    ):
        visited |= {(query_tiles[i], tile) for i in range(first, stop)}
        full |= {(query_tiles[i], tile) for i in range(inner, outer)}
    assert len(visited) == tiles.num_visited == sum(stops) - sum(firsts)
    assert len(full) == len(tiles.full_keys) > 0
    mask = torch.zeros(400, 400, dtype=torch.bool)
    for query, key in visited:
        mask[query * 8 : query * 8 + 8, key * 16 : key * 16 + 16] = True
    assert not (plan.mask_QN() & ~mask).any()


def float32_tiles(end: list[int], window: int | None = None, key_heads: int = 8) -> tuple[int, int]:
    """Return the parts of dK, and the tiles of dK itself, of all key heads at head size 128."""
    plan = TreePlan.build(end, window=window)
    keys = kernel_configs.default_config(128, torch.bfloat16)
    parts = triton_attention.key_parts(
        plan, keys.keys.block_m, keys.keys.block_n, keys.max_query_tiles,
        keys.max_extra_parts // key_heads,
    )  # fmt: skip
    return key_heads * len(parts.key_tile), key_heads * (len(parts.offsets) - 1)


@given(
    end=ends(max_size=2500),
    window=st.none() | st.integers(1, 900),
    tiles=st.integers(1, 5),
    extra=st.integers(1, 40),
)
def test_parts_are_as_many_as_key_tiles_and_a_constant(
    end: list[int], window: int | None, tiles: int, extra: int
) -> None:
    plan = TreePlan.build(end, window=window)
    parts = triton_attention.key_parts(plan, 8, 16, tiles, extra)
    assert len(parts.key_tile) < len(parts.offsets) - 1 + extra
    lengths = (parts.stop - parts.first).tolist()
    if len(parts.key_tile) == len(parts.offsets) - 1:
        return
    assert max(lengths) >= tiles


@pytest.mark.slow
def test_the_memory_of_the_backward_grows_with_the_tokens_not_with_the_pairs() -> None:
    for num in (131_072, 262_144):
        fan = [num] * (num // 2) + [num // 2 + i - i % 1024 + 1024 for i in range(num // 2)]
        for end, window in (([num] * num, None), (fan, None), ([num] * num, 4096)):
            parts, tiles = float32_tiles(end, window)
            assert tiles <= parts < tiles + 1024  # 128 MiB of dK and dV, whatever the forest


@pytest.mark.skipif(DEVICE != "cpu", reason="of the CPU's virtual memory")
def test_rows_beyond_2_31_elements_are_read_where_they_are() -> None:
    """As q, k, v and dO of 64 heads of 128 and 262,144 tokens, in memory that is never touched."""
    num, size, half = 40, 16, 2**31
    stride = half // 36  # the last three rows begin beyond 2^31 elements
    no_reserve = 0x4000  # Linux's MAP_NORESERVE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    # Half of it before the tensors: an offset that wrapped around would read zeros there.
    flat = torch.frombuffer(mmap.mmap(-1, 8 * half, flags=flags), dtype=torch.float16)
    inputs = [t.half() for t in draw(num, 1, 1, size)]
    far = [
        flat.as_strided((1, num, size), (size, stride, 1), half + i * size).copy_(inputs[i])
        for i in range(4)
    ]
    plan = TreePlan.build([num] * num)

    def run(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        out = triton_attention.triton_attention(*leaves, plan, scale=0.25, config=SMALL)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    for x, y in zip(run(*far), run(*inputs), strict=True):
        assert x.norm() > 0 and torch.equal(x, y)


def test_a_device_has_the_configuration_that_was_measured_on_it(tmp_path: Path) -> None:
    measured = config(32, 64)
    kernel_configs.write_table(tmp_path / "table.json", {"a 128 bfloat16": measured})
    assert kernel_configs.read_table(tmp_path / "table.json") == {"a 128 bfloat16": measured}
    for key, shipped in kernel_configs.read_table(kernel_configs.TABLE).items():
        name, size, dtype = key.rsplit(" ", 2)
        assert name and int(size) in HEAD_SIZES and hasattr(torch, dtype)
        assert shipped.forward.block_m >= 16
    chosen = kernel_configs.choose_config(torch.device("cpu"), 64, torch.float32)
    assert chosen == kernel_configs.default_config(64, torch.float32)


def test_what_the_kernels_do_not_know_is_refused() -> None:
    plan = TreePlan.build([2, 2], device=DEVICE)
    q = torch.zeros(1, 2, 48, device=DEVICE)
    with pytest.raises(ValueError, match=r"'triton' has head sizes \(16, 32, .*\), got 48"):
        tree_attention(q, q, q, plan, backend="triton")
    wide = torch.zeros(1, 2, 64, device=DEVICE, dtype=torch.float64)
    with pytest.raises(ValueError, match="computes in float32, got float64"):
        tree_attention(wide, wide, wide, plan, backend="triton")

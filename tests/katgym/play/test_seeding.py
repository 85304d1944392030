"""Derived seeds are fixed numbers, in range, and tell their parts apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from katgym.play.seeding import derive_seed

PARTS = st.lists(st.integers() | st.text(max_size=5) | st.booleans() | st.none(), max_size=4)


def test_derived_seeds_never_change() -> None:
    assert derive_seed() == 0x42C4B0E3  # the first bytes of sha256(b"")
    assert derive_seed("sampling", 0, 0) == 666030629
    assert derive_seed("sampling", 0, 1) == 1266716393


@given(PARTS)
def test_derived_seeds_are_in_range_and_repeat(parts: list[object]) -> None:
    assert 0 <= derive_seed(*parts) == derive_seed(*parts) < 2**31


def test_parts_are_told_apart_by_type_length_and_order() -> None:
    different = [("a", "bc"), ("ab", "c"), ("abc",), ("c", "ab"), (1,), ("1",), (True,), (1.0,), ()]
    assert len({derive_seed(*parts) for parts in different}) == len(different)


def test_neighbouring_seeds_do_not_collide() -> None:
    seeds = [derive_seed("sampling", seed, attempt) for seed in range(100) for attempt in range(20)]
    assert len(set(seeds)) == 2000
    assert abs(sum(seeds) / 2000 / 2**30 - 1) < 0.1

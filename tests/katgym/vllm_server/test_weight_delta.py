"""Deltas of weight files: exact to the bit, and never applied to another file.

Not here: deltas on their way to a server (`test_weight_receiver.py`).
"""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from katgym.errors import UsageError
from katgym.vllm_server import weight_delta
from katgym.vllm_server.weight_delta import (
    DeltaError,
    apply_delta,
    read_header,
    sha256_of,
    write_delta,
)

_ON_DISK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def safetensors(numbers, dtype="BF16"):
    """Return the bytes of a file with one tensor."""
    content = numbers.tobytes()
    entry = {"dtype": dtype, "shape": [numbers.size], "data_offsets": [0, len(content)]}
    head = json.dumps({"w": entry}).encode()
    return struct.pack("<Q", len(head)) + head + content


@_ON_DISK
@given(data=st.data(), size=st.integers(0, 3000), piece=st.sampled_from([16, 63 * 8, 16 << 20]))
def test_what_comes_out_is_the_file_to_the_bit(tmp_path, data, size, piece):
    base, result, delta, made = (tmp_path / name for name in ("base", "result", "delta", "made"))
    draw = np.random.default_rng(data.draw(st.integers(0, 1000)))
    old = draw.integers(0, 256, size, np.uint8)
    is_changed = draw.random(size) < data.draw(st.sampled_from([0.0, 0.001, 0.05, 1.0]))
    new = np.where(is_changed, draw.integers(0, 256, size, np.uint8), old)
    content = [old.tobytes(), new.tobytes()]
    if data.draw(st.booleans()):
        kind = data.draw(st.sampled_from(["BF16", "F32", "I8"]))
        content = [safetensors(old, kind), safetensors(new, kind)]
    base.write_bytes(content[0])
    result.write_bytes(content[1])
    before, weight_delta._PIECE_BYTES = weight_delta._PIECE_BYTES, piece
    try:
        header = write_delta(base, result, delta)
        assert apply_delta(base, delta, made) == header == read_header(delta)
    finally:
        weight_delta._PIECE_BYTES = before
    assert made.read_bytes() == content[1]
    assert (header.base_sha256, header.result_sha256) == (sha256_of(base), sha256_of(result))


def test_a_step_of_a_small_learning_rate_is_small(tmp_path):
    draw = np.random.default_rng(0)
    old = draw.integers(0, 1 << 16, 1_000_000, np.uint16)
    new = old ^ (draw.random(old.size) < 0.01).astype(np.uint16)
    files = [tmp_path / "old", tmp_path / "new"]
    for file, numbers in zip(files, (old, new), strict=True):
        file.write_bytes(safetensors(numbers))
    header = write_delta(*files, tmp_path / "delta")
    assert header.item_bytes == 2
    assert (tmp_path / "delta").stat().st_size < 0.008 * files[1].stat().st_size


@pytest.fixture
def files(tmp_path):
    """A base, a result and their delta."""
    base, result, delta = (tmp_path / name for name in ("base", "result", "delta"))
    base.write_bytes(bytes(range(256)) * 40)
    result.write_bytes(bytes(range(255, -1, -1)) * 40)
    write_delta(base, result, delta)
    return base, result, delta, tmp_path / "made"


def test_another_base_is_refused_and_nothing_is_left(files):
    base, result, delta, made = files
    for wrong in (b"", bytes(256 * 40), bytes(range(256)) * 41):
        base.write_bytes(wrong)
        with pytest.raises(DeltaError, match=r"(not the file that the delta starts from|no whole)"):
            apply_delta(base, delta, made)
        found = sorted(path.name for path in made.parent.iterdir())
        assert found == ["base", "delta", "result"]
    with pytest.raises(UsageError, match=r"base' has 10496 bytes"):
        write_delta(base, result, delta)


@_ON_DISK
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_gives_the_right_file_or_none(files, place, bit):
    base, result, delta, made = files
    whole = delta.read_bytes()
    broken = bytearray(whole)
    broken[place % len(whole)] ^= 1 << bit
    made.unlink(missing_ok=True)
    delta.write_bytes(broken)
    try:
        apply_delta(base, delta, made)
        assert made.read_bytes() == result.read_bytes()
    except DeltaError:
        assert not made.exists()
    finally:
        delta.write_bytes(whole)


def test_a_part_of_a_delta_is_refused(files):
    base, _, delta, made = files
    whole = delta.read_bytes()
    for share in (0.0, 0.05, 0.5, 0.99):
        delta.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DeltaError, match="send the whole file"):
            apply_delta(base, delta, made)
        assert not made.exists()

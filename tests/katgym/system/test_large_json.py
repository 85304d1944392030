"""JSON in steps: the same values as of one call."""

from __future__ import annotations

import json

import pytest

from katgym.system.large_json import STEP, encode_in_steps

TEXT = 'a"\\\n\x00\u20ac\U0001f600'


@pytest.mark.parametrize(
    "value",
    [
        {"a": [], "b": {}, "c": (), "d": [1, 2.5, None], "": [[[]]], "e": [True, False], "é": ""},
        [TEXT * STEP, {"x": TEXT * (STEP // 8)}, "y" * STEP, "y" * (STEP + 1)],
        {"ids": list(range(2 * STEP + 1)), "t": tuple(range(STEP))},
        "x",
        3,
    ],
)
def test_what_is_encoded_in_steps_is_read_as_it_was(value):
    assert json.loads(encode_in_steps(value)) == json.loads(json.dumps(value))

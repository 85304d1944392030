"""Prompts' ids as JSON, of which a session's beginnings are remembered."""

from __future__ import annotations

import json
from array import array

from katgym.gateway.answering.id_texts import MIN_IDS, IdTexts


def test_prompts_that_go_on_and_those_that_do_not_are_the_same_json() -> None:
    texts = IdTexts()
    ids = array("i", range(MIN_IDS + 5))
    longer = ids + array("i", [7, 8])
    for asked in (ids, longer, longer, ids, longer[1:], array("i", [3]), array("i")):
        assert json.loads(texts.encode("s", asked)) == list(asked)
        assert json.loads(texts.encode("t", list(asked))) == list(asked)


def test_what_is_remembered_has_a_limit() -> None:
    ids = array("i", range(MIN_IDS))
    texts = IdTexts(max_bytes=3 * 9 * MIN_IDS)
    for session in "abcdef":
        assert json.loads(texts.encode(session, ids)) == list(ids)
    assert 1 <= len(texts._known) <= 3
    assert texts._num_bytes <= 3 * 9 * MIN_IDS

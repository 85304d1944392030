"""Which weights sampled a call's tokens, for servers that do not tell.

Not here: servers that do (`test_token_answering.py`).
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import wait_until

from katgym.gateway.answering.version_log import VersionLog
from katgym.policies.version_span import check_spans

from .served_gateway import running


class Clock:
    def __init__(self):
        self.at_s = 100.0

    def __call__(self):
        return self.at_s


@pytest.fixture
def log():
    return VersionLog(1, Clock())


def told(spans):
    return [(s.version, s.start, s.end) for s in spans]


def move(log, paused_s, resumed_s, version):
    log.now_s.at_s = paused_s
    log.pause()
    log.now_s.at_s = resumed_s
    log.resume(version)


def test_a_call_that_no_move_touches_has_one_version(log):
    assert told(log.spans(90, 100, 8)) == [(1, 0, 8)]
    move(log, 110, 120, 2)
    assert told(log.spans(90, 100, 8)) == [(1, 0, 8)]
    assert told(log.spans(121, 130, 8)) == [(2, 0, 8)]


def test_tokens_are_split_by_the_time_that_each_version_sampled(log):
    move(log, 110, 120, 2)  # of 100 to 140: 10 s before, 10 s of pause, 20 s behind
    assert told(log.spans(100, 140, 30)) == [(1, 0, 10), (2, 10, 30)]
    move(log, 130, 132, 5)
    assert told(log.spans(100, 132.001, 20)) == [(1, 0, 10), (2, 10, 19), (5, 19, 20)]
    assert told(log.spans(109.999, 1000, 3)) == [(1, 0, 1), (2, 1, 2), (5, 2, 3)]
    assert told(log.spans(100, 1000, 1)) == [(1, 0, 1)]
    assert told(log.spans(100, 1000, 2)) == [(1, 0, 1), (2, 1, 2)]


def test_the_same_version_again_is_no_move(log):
    move(log, 110, 120, 1)
    assert told(log.spans(100, 140, 30)) == [(1, 0, 30)]


def test_spans_cover_every_token_whatever_moves(log):
    for number in range(40):
        move(log, 100 + number, 100.5 + number, number + 2)
    for num_tokens in (1, 2, 39, 40, 41, 63, 1000):
        for sent_s, answered_s in ((0, 1000), (99, 101), (110.2, 110.3), (120.5, 139.5), (50, 50)):
            spans = log.spans(sent_s, answered_s, num_tokens)
            check_spans(spans, num_tokens)
            versions = [s.version for s in spans]
            assert versions == sorted(set(versions))


ASKED = {
    "v1/chat/completions": {"messages": [{"role": "user", "content": "say something"}]},
    "v1/completions": {"prompt": "say"},
}


def ask_all(gateway):
    """Ask by every route, each in a session of its own; return the answers."""
    with ThreadPoolExecutor(len(ASKED)) as pool:
        asked = [
            pool.submit(
                gateway.of(path.replace("/", "-")).post, path, json={"model": "tiny", **body}
            )
            for path, body in ASKED.items()
        ]
        return [each.result() for each in asked]


@contextlib.contextmanager
def asking(gateway, server):
    """Hold the answers of calls by every route until the block ends."""
    server.is_held = True
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(ask_all, gateway)
        wait_until(lambda: server.num_calls == len(ASKED), "the calls")
        yield
        server.is_held = False
        assert [answer.status_code for answer in answers.result()] == [200] * len(ASKED)


def turns_of(gateway):
    return [gateway.of(path.replace("/", "-")).turns() for path in ASKED]


def test_weights_that_move_under_a_call_are_two_spans(own_gateway, server):
    gateway = own_gateway
    gateway.move(1)
    with asking(gateway, server):
        gateway.owner("POST", "/control/pause")
        gateway.move(3)
    for (turn,) in turns_of(gateway):
        assert [span.version for span in turn.tokens.version_spans] == [1, 3]
        check_spans(turn.tokens.version_spans, len(turn.tokens.completion_ids))
        assert turn.tokens.policy_version == 1
    assert gateway.owner("GET", "/s/v1-completions").json()["oldest_version"] == 1


def test_a_call_that_lives_through_a_new_adapter_is_all_of_the_one_it_asked(own_server, tmp_path):
    """Nothing is paused: name and version change together for calls that follow."""
    names = ["tiny", "mine@v1-0a", "mine@v2-0b"]
    own_server.cards = [{"id": name} for name in names]
    with running(tmp_path / "s", own_server.url) as gateway:
        gateway.move(1, model="mine@v1-0a")
        with asking(gateway, own_server):
            gateway.move(2, model="mine@v2-0b")
        ask_all(gateway)
        assert gateway.client.get("/control/status").json()["model"] == "mine@v2-0b"
    with running(tmp_path / "s", own_server.url) as gateway:  # it is kept over restarts
        ask_all(gateway)
        for turns in turns_of(gateway):
            spans = [told(turn.tokens.version_spans) for turn in turns]
            num = spans[0][0][2]
            assert spans == [[(1, 0, num)], [(2, 0, num)], [(2, 0, num)]]
        gateway.move(3)  # all the server's weights
        ask_all(gateway)
    models = [asked["model"] for _, asked in own_server.requests]
    assert models == [name for name in (names[1], names[2], names[2], "tiny") for _ in ASKED]

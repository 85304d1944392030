"""Mutated reports of a test process: none of them makes the reader raise.

    PYTHONPATH=tests/envs/swe python tests/envs/swe/attacks/fuzz_reports.py 1000000

Each run takes the reports of an honest process (channel and junit file) and changes one to four
things in them: a value is replaced by an odd one, a line or an element is dropped, doubled or
moved, bytes are flipped, cut or put in. Prints how many there were, how many of them contradict
themselves, and how often each thing was said of them. Not here: what a reader says of one of them
(`tests/envs/swe/test_run/test_reports.py`).
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from typing import Any

from katgym.sandbox import ExecResult
from katgym_envs.swe.test_run.reports import read_reports

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 10**30, 10**4000, 0.5, 1e999, -1e999, float("nan"), "", "\x00", "é",
    "\ud800", "x" * 5000, [], [[]], [None], {}, {"kind": "end"}, [1, 2], "passed", "failed",
)  # fmt: skip
XML: tuple[bytes, ...] = (
    b'<?xml version="1.0" encoding="rot13"?>', b'<?xml version="1.0" encoding="utf-16"?>',
    b'<?xml version="1.1"?>', b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"&#0;", b"&#55296;",
    b"<![CDATA[", b"]]>", b"<a>" * 3000, b"\xff\xfe", b"\xef\xbb\xbf", b"<failure/>", b"<testcase>",
    b"</testcase>", b"<testcase/>", b" name='y'", b"<x:y/>", b"<?z?>", b"<!--",
)  # fmt: skip


def honest(rng: random.Random) -> tuple[list[dict[str, Any]], bytes]:
    """Return the lines and the junit file of a run of three tests, one of which fails."""
    kinds = rng.choices(("passed", "failed", "skipped"), k=3)
    lines: list[dict[str, Any]] = [{"kind": "hello"}]
    names = [f"test_{letter}" for letter in "abc"]
    lines.append({"kind": "collected", "tests": [["t.py", n, 0, f"t.py::{n}"] for n in names]})
    cases = b""
    for index, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        phases = [
            {"when": when, "outcome": kind if when == "call" else "passed", "duration": 0.1,
             "xfail": False, "subtest": False, "message": ""}
            for when in ("setup", "call", "teardown")
        ]  # fmt: skip
        lines.append(
            {"kind": "test", "index": index, "phases": phases, "exception": "", "place": "3:1",
             "is_assertion": False, "compared": ["1", "2"]}
        )  # fmt: skip
        inside = {"passed": b"", "failed": b"<failure/>", "skipped": b"<skipped/>"}[kind]
        cases += b'<testcase classname="t" name="%s">%s</testcase>' % (name.encode(), inside)
    lines.append({"kind": "end", "exit_code": int("failed" in kinds)})
    return lines, b"<testsuites><testsuite>%s</testsuite></testsuites>" % cases


def change_value(value: Any, rng: random.Random) -> Any:
    """Return it with one value in it, at any depth, replaced, dropped or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        changed = {k: change_value(v, rng) if k == name else v for k, v in value.items()}
        if rng.random() < 0.1:
            del changed[name]
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        found = [change_value(v, rng) if i == at else v for i, v in enumerate(value)]
        return rng.choice((found, found, found[:at], found + found[at:], found[::-1]))
    return rng.choice(ODD)


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return it with a few bytes flipped, cut, doubled or put in."""
    at, end = sorted(rng.choices(range(len(data) + 1), k=2))
    return rng.choice((
        data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
        data[:at] + data[end:],
        data[:end] + data[at:],
        data[:at] + rng.choice(XML) + data[at:],
        rng.choice(XML) + data,
    ))  # fmt: skip


def mutated(rng: random.Random) -> tuple[ExecResult, bytes, bytes | None]:
    """Return what a process left that changed its reports."""
    lines, junit = honest(rng)
    code = lines[-1]["exit_code"]
    odd: bytes | None = junit
    text = None
    for _ in range(rng.randint(1, 4)):
        draw = rng.random()
        if draw < 0.5:
            at = rng.randrange(len(lines))
            lines[at] = change_value(lines[at], rng)
            lines = lines or [{}]
        elif draw < 0.6:
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
        elif draw < 0.65:
            code = rng.choice((None, 0, 1, 2, -9))
        elif draw < 0.75:
            text = True
        else:
            odd = None if rng.random() < 0.02 else change_bytes(odd or b"", rng)
    told = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    if text:
        told = change_bytes(told, rng)
    return ExecResult(exit_code=code), told, odd


def fuzz(num: int, *, seed: int, said: Counter[str] | None = None) -> int:
    """Read `num` mutated reports; return how many contradict themselves. What raises, raises."""
    rng = random.Random(seed)
    num_caught = 0
    for _ in range(num):
        run = read_reports(*mutated(rng))
        num_caught += bool(run.disagreements)
        if said is not None:
            said.update([run.disagreements[0] if run.disagreements else "nothing"])
    return num_caught


if __name__ == "__main__":
    total, began, counts = int(sys.argv[1]), time.perf_counter(), Counter[str]()
    caught = fuzz(total, seed=0, said=counts)
    took_s = time.perf_counter() - began
    print(f"{total} reports, 0 raised, {caught} contradict themselves, {took_s:.0f} s")
    for what, number in counts.most_common(12):
        print(f"{number:9} {what}")

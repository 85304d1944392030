"""Commands under a supervisor: results, output, limits, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until_async

from katgym.sandbox.base import SandboxError
from katgym.sandbox.supervisor.running import Collector


def mark(number: int) -> str:
    """Return seconds for `sleep` that no other test run sleeps."""
    return f"{number}.{os.getpid():09d}"


def running(word: str) -> list[int]:
    """Return the processes whose command line holds a word."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


def test_exit_codes_signals_and_both_streams_are_told(supervised):
    async def play(box):
        reply, data = await box.exec("echo out; echo err >&2; exit 3")
        assert (reply["exit_code"], reply["signal"], reply["limit_hit"]) == (3, None, None)
        assert reply["lengths"] == [4, 4]
        assert data == b"out\nerr\n"
        reply, _ = await box.exec("kill -SEGV $$")
        assert (reply["exit_code"], reply["signal"]) == (None, signal.SIGSEGV)

    supervised(play)


def test_command_that_cannot_start_is_a_result(supervised, subtests):
    missing = b"No such file or directory\n"
    cases = (
        (["no-such-command"], {}, 127, b"no-such-command: command not found\n"),
        (["./no/such"], {}, 127, b"./no/such: " + missing),
        (["/etc/passwd"], {}, 126, b"/etc/passwd: Permission denied\n"),
        (["true"], {"cwd": "/no/such"}, 126, b"/no/such: " + missing),
        (["true", "x" * 200_000], {}, 126, b"true: Argument list too long\n"),
    )

    async def play(box):
        for argv, fields, code, text in cases:
            with subtests.test(text=text):
                reply, data = await box.exec(argv, **fields)
                assert (reply["exit_code"], data) == (code, text)

    supervised(play)


def test_scripts_arguments_input_and_environment_arrive_as_they_are(supervised):
    data = os.urandom((1 << 20) + 1)

    async def play(box):
        script = box.work / "script"
        script.write_text("echo from $0 $1")  # without a first line it is one of sh
        script.chmod(0o755)
        assert (await box.exec(["./script", "one"]))[1].endswith(b"script one\n")
        back = await box.exec(["cat"], stdin=data, limits={"output_bytes": 4 << 20})
        assert back[1] == data
        unread = await box.exec(["true"], stdin=bytes(1 << 20))
        assert unread[0]["exit_code"] == 0
        parts = ["x" * 1023] * 1024
        assert (await box.exec(["/bin/bash", "-c", 'echo "${#@}"', "-", *parts]))[1] == b"1024\n"
        odd = await box.exec(["/usr/bin/env"], env={"A": "\udcff ü"})
        assert odd[1] == b"A=\xff \xc3\xbc\n"

    supervised(play)


def test_command_inherits_no_descriptor_and_no_ignored_signal(supervised):
    async def play(box):
        fds = await box.exec(["ls", "/proc/self/fd"])
        ignored = await box.exec(["grep", "SigIgn", "/proc/self/status"])
        return fds[1], ignored[1]

    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGHUP, signal.SIGQUIT)}
    try:  # as if nohup had started katgym
        fds, ignored = supervised(play)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert fds.split() == [b"0", b"1", b"2", b"3"]  # 3 is the folder that is listed
    # 32 and 33 are the C library's own, which nothing but the library itself can set back.
    assert int(ignored.split()[1], 16) & ~(0b11 << 31) == 0


def test_rlimits_are_set_and_long_output_keeps_head_and_tail_and_counts_the_rest(supervised):
    async def play(box):
        rlimits = {"NOFILE": 77, "FSIZE": 4096}
        used = await box.exec("ulimit -n; head -c 9999 /dev/zero > f", limits={"rlimits": rlimits})
        assert used[1].startswith(b"77\n")
        assert (box.work / "f").stat().st_size == 4096
        return await box.exec("seq 1 100000", limits={"output_bytes": 101})

    whole = b"".join(b"%d\n" % i for i in range(1, 100_001))
    reply, data = supervised(play)
    assert reply["omitted"][0] == len(whole) - 101
    split = reply["splits"][0]
    assert (data[:split], data[split:]) == (whole[:50], whole[-51:])


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(2, 60))
def test_collector_keeps_first_and_last_half(chunks, size):
    collector = Collector(size)
    for chunk in chunks:
        collector.add(chunk)
    whole = b"".join(chunks)
    kept, omitted, split = collector.result()
    if len(whole) <= size:
        assert (kept, omitted) == (whole, 0)
    else:
        assert omitted == len(whole) - size
        assert kept[:split] == whole[: size // 2]
        assert kept[split:] == whole[-(size - size // 2) :]


def test_what_a_command_leaves_behind_is_ended(supervised):
    word = mark(41001)

    async def play(box):
        reply, data = await box.exec(
            f"sleep {word} & setsid sleep {word} & (setsid sleep {word} &) ; echo done"
        )
        # stdout was held open by what was left: who waits for that ends at the wall limit
        assert (reply["exit_code"], reply["limit_hit"], data) == (0, None, b"done\n")
        assert running(word) == []

    supervised(play)


def test_limits_of_time_end_the_whole_tree(supervised):
    word = mark(41002)
    script = f"trap '' TERM; sleep {word} & setsid sleep {word} & echo before; wait"

    async def play(box):
        for wall_s in (0.3, 3, 30, 300):  # a machine may be too busy to come so far sooner
            reply, data = await box.exec(script, limits={"wall_s": wall_s})
            if data:
                break
        assert (reply["limit_hit"], reply["signal"], reply["exit_code"]) == ("wall_s", 9, None)
        assert (data, running(word)) == (b"before\n", [])
        assert reply["wall_s"] >= wall_s
        spin = "(while :; do :; done) & (while :; do :; done) & wait"
        reply, _ = await box.exec(spin, limits={"cpu_s": 0.4})  # of all processes together
        assert (reply["limit_hit"], reply["signal"]) == ("cpu_s", 9)
        assert reply["cpu_s"] >= 0.4

    supervised(play)


def test_commands_run_side_by_side_and_end_apart(supervised):
    word = mark(41003)

    async def play(box):
        go_on = "while ! [ -e go_on ]; do sleep 0.02; done; echo survived"
        long = asyncio.create_task(box.exec(go_on))
        short = [box.exec(f"echo {i}; sleep {word} & exit {i}") for i in range(12)]
        results = await asyncio.gather(*short)
        (box.work / "go_on").touch()
        assert [reply["exit_code"] for reply, _ in results] == list(range(12))
        assert [data for _, data in results] == [b"%d\n" % i for i in range(12)]
        assert ((await long)[1], running(word)) == (b"survived\n", [])

    supervised(play)


def test_a_killed_or_stopped_guardian_leaves_nothing(supervised):
    word = mark(41004)

    async def play(box):
        reply, _ = await box.exec(f"setsid sleep {word} & kill -9 $PPID; sleep {word}")
        assert (reply["signal"], (await box.exec("echo fine"))[1]) == (9, b"fine\n")
        assert running(word) == []
        stopped = f"kill -STOP $PPID; sleep {word}"
        reply, _ = await box.exec(stopped, limits={"wall_s": 0.3})
        assert reply["limit_hit"] == "wall_s"

    supervised(play)
    assert running(word) == []


async def start_sleeping(box, word, num=3):
    """Return commands that run."""
    commands = [asyncio.create_task(box.exec(f"sleep {word}")) for _ in range(num)]
    await wait_until_async(lambda: len(running(word)) >= num, "the commands to run")
    return commands


def test_a_cancelled_call_and_stop_end_commands(supervised):
    word = mark(41006)

    async def play(box):
        (cancelled,) = await start_sleeping(box, word, 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await box.exec(["true"])  # requests are served in order
        assert running(word) == []
        stopped = await start_sleeping(box, word)
        await box.channel.request("stop")
        assert [reply["signal"] for reply, _ in await asyncio.gather(*stopped)] == [9, 9, 9]

    supervised(play)


def test_supervisor_that_dies_fails_every_caller(supervised):
    word = mark(41009)

    async def play(box):
        waiting = await start_sleeping(box, word)
        box.process.kill()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        for pid in running(word):  # nobody outlives a supervisor that is PID 1; this is none
            os.kill(pid, signal.SIGKILL)
        assert [str(e) for e in results] == ["sandbox test ended by itself"] * 3
        with pytest.raises(SandboxError, match="ended by itself"):
            await box.exec(["true"])

    supervised(play)


def test_end_of_the_channel_ends_commands(supervised):
    word = mark(41008)

    async def play(box):
        waiting = asyncio.create_task(box.exec(f"setsid sleep {word} & sleep {word}"))
        await wait_until_async(lambda: len(running(word)) >= 2, "the command to run")
        box.channel.close()
        with pytest.raises(SandboxError, match="was ended"):
            await waiting
        await asyncio.to_thread(box.process.wait, 300)
        assert running(word) == []

    supervised(play)


def test_call_runs_a_function_and_hands_back_its_report(supervised):
    async def play(box):
        for function, code, stdout, reported in (
            ("sample:answer", 7, b"said\n", b"cba"),
            ("sample:missing", 1, b"", b""),
        ):
            reply, data = await box.exec([], op="call", stdin=b"abc", function=function)
            num_out, num_err, num_reported = reply["lengths"]
            assert (reply["exit_code"], data[:num_out]) == (code, stdout)
            assert data[num_out + num_err :] == reported
            assert num_reported == len(reported)

    supervised(play)

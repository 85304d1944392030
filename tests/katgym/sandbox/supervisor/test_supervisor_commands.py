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


def test_result_has_exit_code_and_both_streams(supervised):
    async def main():
        async with supervised() as box:
            return await box.exec("echo out; echo err >&2; exit 3")

    reply, data = asyncio.run(main())
    assert (reply["exit_code"], reply["signal"], reply["limit_hit"]) == (3, None, None)
    assert reply["lengths"] == [4, 4]
    assert data == b"out\nerr\n"


def test_signal_is_told_apart_from_exit_code(supervised):
    async def main():
        async with supervised() as box:
            return await box.exec("kill -SEGV $$")

    reply, _ = asyncio.run(main())
    assert (reply["exit_code"], reply["signal"]) == (None, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("argv", "fields", "code", "text"),
    [
        (["no-such-command"], {}, 127, b"no-such-command: command not found\n"),
        (["./no/such"], {}, 127, b"./no/such: No such file or directory\n"),
        (["/etc/passwd"], {}, 126, b"/etc/passwd: Permission denied\n"),
        (["true"], {"cwd": "/no/such"}, 126, b"/no/such: No such file or directory\n"),
        (["true", "x" * 200_000], {}, 126, b"true: Argument list too long\n"),
    ],
)
def test_command_that_cannot_start_is_a_result(supervised, argv, fields, code, text):
    async def main():
        async with supervised() as box:
            return await box.exec(argv, **fields)

    reply, data = asyncio.run(main())
    assert (reply["exit_code"], data) == (code, text)


def test_script_without_first_line_runs_in_sh(supervised):
    async def main():
        async with supervised() as box:
            script = box.work / "script"
            script.write_text("echo from $0 $1")
            script.chmod(0o755)
            return await box.exec(["./script", "one"])

    assert asyncio.run(main())[1].endswith(b"script one\n")


def test_binary_stdin_of_a_mebibyte_comes_back(supervised):
    data = os.urandom((1 << 20) + 1)

    async def main():
        async with supervised() as box:
            return await box.exec(["cat"], stdin=data, limits={"output_bytes": 4 << 20})

    assert asyncio.run(main())[1] == data


def test_stdin_that_is_not_read_does_no_harm(supervised):
    async def main():
        async with supervised() as box:
            return await box.exec(["true"], stdin=bytes(1 << 20))

    assert asyncio.run(main())[0]["exit_code"] == 0


def test_argv_of_a_mebibyte_arrives(supervised):
    parts = ["x" * 1023] * 1024

    async def main():
        async with supervised() as box:
            return await box.exec(["/bin/bash", "-c", 'echo "${#@}"', "-", *parts])

    assert asyncio.run(main())[1] == b"1024\n"


def test_environment_is_exact_and_keeps_odd_bytes(supervised):
    async def main():
        async with supervised() as box:
            return await box.exec(["/usr/bin/env"], env={"A": "\udcff ü"})

    assert asyncio.run(main())[1] == b"A=\xff \xc3\xbc\n"


def test_command_inherits_no_descriptor_and_no_ignored_signal(supervised):
    async def main():
        async with supervised() as box:
            fds = await box.exec(["ls", "/proc/self/fd"])
            ignored = await box.exec(["grep", "SigIgn", "/proc/self/status"])
            return fds[1], ignored[1]

    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGHUP, signal.SIGQUIT)}
    try:  # as if nohup had started katgym
        fds, ignored = asyncio.run(main())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert fds.split() == [b"0", b"1", b"2", b"3"]  # 3 is the folder that is listed
    # 32 and 33 are the C library's own, which nothing but the library itself can set back.
    assert int(ignored.split()[1], 16) & ~(0b11 << 31) == 0


def test_rlimits_are_set(supervised):
    async def main():
        async with supervised() as box:
            rlimits = {"NOFILE": 77, "FSIZE": 4096}
            used = await box.exec(
                "ulimit -n; head -c 9999 /dev/zero > f", limits={"rlimits": rlimits}
            )
            return used[1], (box.work / "f").stat().st_size

    assert asyncio.run(main())[0].startswith(b"77\n")
    assert asyncio.run(main())[1] == 4096


def test_long_output_keeps_head_and_tail_and_counts_the_rest(supervised):
    async def main():
        async with supervised() as box:
            return await box.exec("seq 1 100000", limits={"output_bytes": 101})

    whole = b"".join(b"%d\n" % i for i in range(1, 100_001))
    reply, data = asyncio.run(main())
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

    async def main():
        async with supervised() as box:
            reply, data = await box.exec(
                f"sleep {word} & setsid sleep {word} & (setsid sleep {word} &) ; echo done"
            )
            return reply, data, running(word)

    reply, data, left = asyncio.run(main())
    # stdout was held open by what was left: who waits for that ends at the wall limit
    assert (reply["exit_code"], reply["limit_hit"], data, left) == (0, None, b"done\n", [])


def test_wall_limit_ends_the_whole_tree(supervised):
    word = mark(41002)
    script = f"trap '' TERM; sleep {word} & setsid sleep {word} & echo before; wait"

    async def main():
        async with supervised() as box:
            for wall_s in (0.3, 3, 30, 300):  # a machine may be too busy to come so far sooner
                reply, data = await box.exec(script, limits={"wall_s": wall_s})
                if data:
                    break
            return wall_s, reply, data, running(word)

    wall_s, reply, data, left = asyncio.run(main())
    assert (reply["limit_hit"], reply["signal"], reply["exit_code"]) == ("wall_s", 9, None)
    assert (data, left) == (b"before\n", [])
    assert reply["wall_s"] >= wall_s


def test_cpu_limit_counts_all_processes(supervised):
    async def main():
        async with supervised() as box:
            spin = "(while :; do :; done) & (while :; do :; done) & wait"
            return await box.exec(spin, limits={"cpu_s": 0.4})

    reply, _ = asyncio.run(main())
    assert (reply["limit_hit"], reply["signal"]) == ("cpu_s", 9)
    assert reply["cpu_s"] >= 0.4


def test_commands_run_side_by_side_and_end_apart(supervised):
    word = mark(41003)

    async def main():
        async with supervised() as box:
            go_on = "while ! [ -e go_on ]; do sleep 0.02; done; echo survived"
            long = asyncio.create_task(box.exec(go_on))
            short = [box.exec(f"echo {i}; sleep {word} & exit {i}") for i in range(12)]
            results = await asyncio.gather(*short)
            (box.work / "go_on").touch()
            return results, await long, running(word)

    results, long, left = asyncio.run(main())
    assert [reply["exit_code"] for reply, _ in results] == list(range(12))
    assert [data for _, data in results] == [b"%d\n" % i for i in range(12)]
    assert (long[1], left) == (b"survived\n", [])


def test_killed_guardian_leaves_nothing(supervised):
    word = mark(41004)

    async def main():
        async with supervised() as box:
            reply, _ = await box.exec(f"setsid sleep {word} & kill -9 $PPID; sleep {word}")
            _, data = await box.exec("echo fine")
            return reply, data, running(word)

    reply, data, left = asyncio.run(main())
    assert (reply["signal"], data, left) == (9, b"fine\n", [])


def test_stopped_guardian_is_ended_at_the_limit(supervised):
    word = mark(41005)

    async def main():
        async with supervised() as box:
            return await box.exec(f"kill -STOP $PPID; sleep {word}", limits={"wall_s": 0.3})

    reply, _ = asyncio.run(main())
    assert reply["limit_hit"] == "wall_s"
    assert running(word) == []


def test_caller_that_is_cancelled_ends_its_command(supervised):
    word = mark(41006)

    async def main():
        async with supervised() as box:
            waiting = asyncio.create_task(box.exec(f"sleep {word}"))
            await wait_until_async(lambda: running(word), "the command to run")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await box.exec(["true"])  # requests are served in order
            return running(word)

    assert asyncio.run(main()) == []


def test_stop_ends_every_command(supervised):
    word = mark(41007)

    async def main():
        async with supervised() as box:
            waiting = [asyncio.create_task(box.exec(f"sleep {word}")) for _ in range(3)]
            await wait_until_async(lambda: len(running(word)) >= 3, "the commands to run")
            await box.channel.request("stop")
            return [reply["signal"] for reply, _ in await asyncio.gather(*waiting)]

    assert asyncio.run(main()) == [9, 9, 9]


def test_supervisor_that_dies_fails_every_caller(supervised):
    word = mark(41009)

    async def main():
        async with supervised() as box:
            waiting = [asyncio.create_task(box.exec(f"sleep {word}")) for _ in range(3)]
            await wait_until_async(lambda: len(running(word)) >= 3, "the commands to run")
            box.process.kill()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            for pid in running(word):  # nobody outlives a supervisor that is PID 1; this is none
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxError, match="ended by itself"):
                await box.exec(["true"])
            return results

    assert [str(e) for e in asyncio.run(main())] == ["sandbox test ended by itself"] * 3


def test_end_of_the_channel_ends_commands(supervised):
    word = mark(41008)

    async def main():
        async with supervised() as box:
            waiting = asyncio.create_task(box.exec(f"setsid sleep {word} & sleep {word}"))
            await wait_until_async(lambda: len(running(word)) >= 2, "the command to run")
            box.channel.close()
            with pytest.raises(SandboxError, match="was ended"):
                await waiting
            await asyncio.to_thread(box.process.wait, 300)
            return running(word)

    assert asyncio.run(main()) == []


@pytest.mark.parametrize(
    ("function", "code", "stdout", "reported"),
    [("sample:answer", 7, b"said\n", b"cba"), ("sample:missing", 1, b"", b"")],
)
def test_call_runs_a_function_and_hands_back_its_report(
    supervised, function, code, stdout, reported
):
    async def main():
        async with supervised() as box:
            return await box.exec([], op="call", stdin=b"abc", function=function)

    reply, data = asyncio.run(main())
    num_out, num_err, num_reported = reply["lengths"]
    assert (reply["exit_code"], data[:num_out]) == (code, stdout)
    assert data[num_out + num_err :] == reported
    assert num_reported == len(reported)

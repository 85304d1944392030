"""Conformance: `Sandbox.call`, for backends with capability "call".

Not here: commands (`command_checks.py`).
"""

from __future__ import annotations

from katgym.errors import UsageError
from katgym.sandbox.base import ExecResult
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import Fixture, check, sandbox_check
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.preloaded.text_program import RUN, TEXT_PROGRAM, pack_program
from katgym.sandbox.sandbox import Sandbox

_PROGRAM = """
import json, os, sys, time

def main(argument, report):
    print("out"); print("err", file=sys.stderr)
    report(argument[::-1]); report(b"<json>")
    status = open("/proc/self/status").read()
    report(json.dumps({
        "uid": os.getuid(), "cwd": os.getcwd(), "env": os.environ.get("MINE"),
        "caps": [l.split()[1] for l in status.splitlines() if l.startswith("Cap")],
        "seen": getattr(json, "seen", None), "files": sorted(os.listdir()),
    }).encode())
    json.seen = True
    return 7

def spin(argument, report):
    report(b"began")
    time.sleep(60)

def fail(argument, report):
    raise KeyError("katgym")

def flood(argument, report):
    for _ in range(100):
        report(bytes(1000))
"""


async def _call(
    sandbox: Sandbox, function: str, argument: bytes = b"", limits: SandboxLimits | None = None
) -> tuple[ExecResult, bytes]:
    return await sandbox.call(RUN, pack_program(_PROGRAM, function, argument), limits=limits)


@check(requires={"call", "python"})
async def reports(fixture: Fixture) -> None:
    """A call gets its argument and says its report, exit code and output."""
    spec = fixture.spec(
        {"a": b"1"}, python=fixture.python, preload=("json", TEXT_PROGRAM), env={"MINE": "yes"}
    )
    async with await fixture.backend.create(spec) as sandbox:
        agent = int((await expect.run(sandbox, "id -u")).stdout)
        for _ in range(2):
            result, reported = await _call(sandbox, "main", bytes(range(256)) * 1000)
            expect.equal(result.exit_code, 7, f"exit code of {result!r:.300}")
            expect.equal((result.stdout, result.stderr), (b"out\n", b"err\n"), "output")
            argument, _, rest = reported.partition(b"<json>")
            expect.that(
                argument == (bytes(range(256)) * 1000)[::-1], "the argument came back otherwise"
            )
            expect.that(
                f'"uid": {agent}'.encode() in rest, f"not the agent's uid {agent}: {rest!r}"
            )
            expect.that(rest.count(b'"0000000000000000"') == 5, f"capabilities: {rest!r}")
            expect.that(b'"env": "yes"' in rest and b'"files": ["a"]' in rest, f"{rest!r}")
            expect.that(
                b'"seen": null' in rest, "a call sees what an earlier one changed in a module"
            )


@check(requires={"call", "python"})
async def limits_hold(fixture: Fixture) -> None:
    """A call is confined like a command: time limits, output caps, errors."""
    spec = fixture.spec(python=fixture.python, preload=("json", TEXT_PROGRAM))
    async with await fixture.backend.create(spec) as sandbox:
        result, reported = await _call(sandbox, "spin", limits=SandboxLimits(wall_s=0.5))
        found = (result.limit_hit, result.signal, reported)
        expect.equal(found, ("wall_s", 9, b"began"), "timeout")
        result, _ = await _call(sandbox, "fail")
        expect.that(not result.ok and b"KeyError: 'katgym'" in result.stderr, f"{result!r:.300}")
        _, reported = await _call(sandbox, "flood", limits=SandboxLimits(output_bytes=5000))
        expect.equal(len(reported), 5000, "bytes reported with output_bytes=5000")
        result, _ = await _call(sandbox, "main", b"x")
        expect.equal(result.exit_code, 7, "exit code of the next call")


@sandbox_check(requires={"call", "python"})
async def needs_preload(sandbox: Sandbox) -> None:
    """A call of a sandbox without `preload` is refused."""
    await expect.raises(UsageError, sandbox.call(RUN, b""), "a call without preload")


@check(requires={"python"})
async def the_specs_interpreter_is_there(fixture: Fixture) -> None:
    """The spec's interpreter is first on PATH, and read-only."""
    spec = fixture.spec(python=fixture.python)
    async with await fixture.backend.create(spec) as sandbox:
        where = ["python3", "-c", "import sys; print(sys.executable.rpartition('/')[0])"]
        folder = fixture.python.rpartition("/")[0]
        await expect.run(sandbox, where, stdout=f"{folder}\n".encode())
        await expect.run(sandbox, ["touch", f"{folder}/x"], ok=False)

"""The conformance suite: the local backend passes it, and one with a fault does not."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from katgym.errors import UnknownNameError, UsageError
from katgym.sandbox import (
    Enforcement,
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxSpec,
    WorkspaceDiff,
    close_shared_backends,
    shared_backend,
)
from katgym.sandbox.changes import ChangeKind
from katgym.sandbox.conformance import (
    CHECKS,
    ConformanceReport,
    expect,
    run_check,
    run_conformance,
    select,
)
from katgym.sandbox.layer import FileEntry, LayerStore
from katgym.sandbox.local.backend import LocalBackend

NAMES = {
    "command": """
        agent_is_unprivileged arguments commands_at_the_same_time environment exit_codes
        large_arguments not_executable_is_126 not_found_is_127 nothing_is_inherited other_users
        shell_text signals times_and_memory unknown_users working_directory
    """,
    "stream": """
        binary both_streams_beyond_a_pipe closed_output_is_not_the_end endless_output floods
        large stdin_ends stdin_is_data truncation
    """,
    "process": """
        a_cancelled_call_ends_the_command a_command_cannot_end_the_sandbox
        a_fork_bomb_is_bounded a_timeout_ends_the_tree no_signal_is_ignored no_zombies_pile_up
        one_end_does_not_end_the_others what_is_left_running_ends
    """,
    "limit": """
        a_tight_call_is_not_the_next_ones cpu disk file_size memory memory_of_many
        number_of_files open_files processes shared_memory wall
    """,
    "file": """
        a_full_disk at_the_same_time modes_and_owner names_of_nothing odd_names read_is_capped
        round_trip what_cannot_be_read writes_are_whole
    """,
    "link": """
        only_regular_files races reads_follow_no_link_out writes_follow_no_link_out
    """,
    "diff": """
        caps commands_end_first deep_trees directories files layers modes_sizes_and_targets
        no_change nothing_of_the_agents_is_run odd_names types what_the_agent_made_unreadable
        writes_through_a_mapping
    """,
    "workspace": """
        a_fork_outlives_its_parent a_snapshot_changes_nothing forks_are_apart
        forks_have_files_only forks_of_snapshots many_snapshots reset reset_ends_commands
        snapshots unknown_snapshots wrong_numbers_of_forks
    """,
    "isolation": """
        devices neighbours no_capabilities no_file_of_the_host no_network no_process_of_the_host
        no_service_of_the_host no_stray_descriptors read_only_system the_supervisor_is_closed
        what_would_lead_out
    """,
    "lifecycle": """
        enforcement_is_plain further_folders gc_leaves_the_living kill_ends_everything
        kill_of_a_fork_bomb kills_at_once leaving_the_context_kills limits_that_are_not_enforced
        other_workdirs specs_that_cannot_be_honoured time_to_live
    """,
    "call": """
        limits_hold needs_preload reports the_specs_interpreter_is_there
    """,
}
"""Subject -> its checks."""


@pytest.mark.parametrize("subject", NAMES)
def test_the_local_backend_conforms(subject: str, subtests: pytest.Subtests) -> None:
    report = asyncio.run(_run([subject]))
    written = sorted(f"{subject}.{name}" for name in NAMES[subject].split())
    assert sorted(result.name for result in report.results) == written
    for result in report.results:
        with subtests.test(check=result.name):
            if result.passed is None:
                pytest.skip(result.detail)
            assert result.passed, result.detail


async def _run(only: list[str]) -> ConformanceReport:
    backend = LocalBackend()
    try:
        return await run_conformance(backend, only=only)
    finally:
        await backend.aclose()


def test_a_sandbox_without_isolation_refuses_names_of_nothing_too() -> None:
    async def go() -> ConformanceReport:
        backend = LocalBackend(level="none", unsafe=True)
        try:
            return await run_conformance(backend, only=["file.names_of_nothing"])
        finally:
            await backend.aclose()

    (result,) = asyncio.run(go()).results
    assert result.passed, result.detail


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
def test_a_spec_and_a_layer_take_no_text_that_no_system_call_takes(odd: str, tmp_path) -> None:
    wrong: dict[str, Any] = {
        "workdir": f"/{odd}", "folders": (f"/{odd}",), "env": {"A": odd}, "python": f"/{odd}",
        "image": odd, "preload": (odd,), "labels": {"a": odd},
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(UsageError):
            SandboxSpec(**{name: value})
    for files in ({odd: b""}, {"link": FileEntry(link_target=odd)}):
        with pytest.raises(UsageError):
            LayerStore(tmp_path).add_files(files)


def test_every_check_has_a_written_subject_and_says_what_it_checks() -> None:
    assert {check.subject for check in CHECKS} == set(NAMES)
    assert all(check.description.endswith(".") for check in CHECKS)


@pytest.mark.slow
def test_the_shared_backend_conforms() -> None:
    try:
        report = asyncio.run(run_conformance(shared_backend("local")))
    finally:
        close_shared_backends()
    assert [(r.name, r.detail) for r in report.failures] == []
    assert report.ok and len(report.results) == len(CHECKS) > 100


class LosesNewlines(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        found = await super().exec(*args, **options)
        return replace(found, stdout=found.stdout.rstrip(b"\n"))


class IgnoresEnv(Sandbox):
    async def exec(self, *args: Any, env: Any = None, **options: Any) -> ExecResult:
        return await super().exec(*args, **options)


class IgnoresLimits(Sandbox):
    async def exec(self, *args: Any, limits: Any = None, **options: Any) -> ExecResult:
        return await super().exec(*args, **options)


class HidesTimeouts(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        return replace(await super().exec(*args, **options), is_timed_out=False, limit_hit=None)


class RaisesForAMissingProgram(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        found = await super().exec(*args, **options)
        if found.exit_code == 127:
            raise SandboxError("no such program")
        return found


class GoesOnWhenCancelled(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        return await asyncio.shield(asyncio.ensure_future(super().exec(*args, **options)))


class ReadsAnySize(Sandbox):
    async def read(self, path: str, *, max_bytes: int = 0) -> bytes:
        return await super().read(path, max_bytes=1 << 30)


class WritesThroughLinks(Sandbox):
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await super().exec(f"cat > '{path}'", stdin=data)


class ForgetsModes(Sandbox):
    async def diff(self, **options: Any) -> WorkspaceDiff:
        found = await super().diff(**options)
        return WorkspaceDiff(changes=tuple(c for c in found if c.kind is not ChangeKind.MODE))


class LosesWhatIsBeyond(Sandbox):
    async def diff(self, **options: Any) -> WorkspaceDiff:
        return replace(await super().diff(**options), num_omitted=0)


class KeepsTmp(Sandbox):
    async def reset(self, to: str | None = None) -> None:
        had_file = (await super().exec("test -e /tmp/x")).ok
        await super().reset(to)
        if had_file:
            await super().exec("echo > /tmp/x")


class ForksItself(Sandbox):
    async def fork(self, num: int = 1, *, at: str | None = None) -> list[Any]:
        return [self] * num


class LivesOn(Sandbox):
    async def kill(self) -> None:
        pass


FAULTS: list[tuple[type[Sandbox], str]] = [
    (LosesNewlines, "stream.binary"),
    (IgnoresEnv, "command.environment"),
    (IgnoresLimits, "limit.wall"),
    (IgnoresLimits, "stream.truncation"),
    (HidesTimeouts, "limit.cpu"),
    (RaisesForAMissingProgram, "command.not_found_is_127"),
    (GoesOnWhenCancelled, "process.a_cancelled_call_ends_the_command"),
    (ReadsAnySize, "file.read_is_capped"),
    (WritesThroughLinks, "link.writes_follow_no_link_out"),
    (ForgetsModes, "diff.files"),
    (LosesWhatIsBeyond, "diff.caps"),
    (KeepsTmp, "workspace.reset"),
    (ForksItself, "workspace.forks_are_apart"),
    (LivesOn, "lifecycle.kill_ends_everything"),
]


class FaultyBackend(LocalBackend):
    """Its sandboxes have the fault of the moment."""

    fault: type[Sandbox] = Sandbox

    async def create(self, spec: SandboxSpec) -> Any:
        made = await super().create(spec)
        made.__class__ = self.fault
        return made


def test_a_fault_is_found(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "HANG_S", 1.0)  # some faults are that something never ends

    async def play() -> None:
        backend = FaultyBackend()
        try:
            for fault, name in FAULTS:
                backend.fault = fault
                (check,) = select([name])
                is_found = pytest.raises((AssertionError, SandboxError))
                with subtests.test(fault=fault.__name__, check=name), is_found:
                    await run_check(check, backend)
        finally:
            await backend.aclose()

    asyncio.run(play())


class Poor(LocalBackend):
    """Says that it can do less than it can."""

    async def enforcement(self) -> Enforcement:
        found = await super().enforcement()
        limits: Mapping[str, str] = {k: v for k, v in found.limits.items() if k != "cpu_s"}
        return replace(found, limits=limits, capabilities=frozenset({"snapshot"}))


def test_what_a_backend_does_not_claim_is_skipped_and_has_to_be_refused() -> None:
    async def play() -> ConformanceReport:
        backend = Poor()
        try:
            (cpu,) = select(["limit.cpu"])
            assert str(cpu) == "limit.cpu"
            with pytest.raises(unittest.SkipTest, match="does not enforce cpu_s"):  # as a test
                await run_check(cpu, backend)
            (refusal,) = select(["lifecycle.limits_that_are_not_enforced"])
            with pytest.raises(AssertionError, match="cpu_s, not enforced"):
                await run_check(refusal, backend)
            only = ["limit.cpu", "workspace.forks_are_apart", "command.exit_codes"]
            return await run_conformance(backend, only=only)
        finally:
            await backend.aclose()

    report = asyncio.run(play())
    assert report.ok
    assert {r.name: r.detail for r in report.results if r.passed is None} == {
        "limit.cpu": "the backend does not enforce cpu_s",
        "workspace.forks_are_apart": "the backend has no capability 'fork'",
    }


def test_checks_are_chosen_by_name_or_subject() -> None:
    assert [check.name for check in select(["limit.wall", "call"])] == [
        "limit.wall",
        *(check.name for check in CHECKS if check.subject == "call"),
    ]
    with pytest.raises(UnknownNameError, match=r"Did you mean 'limit\.wall'\?"):
        select(["limit.wal"])

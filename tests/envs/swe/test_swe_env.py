"""`katgym/SWE-v0` played through its public interface, on the toy repository."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from faulty_backend import BusyBackend

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym.environment.failure import FailureKind
from katgym.errors import UnknownNameError, UsageError
from katgym.sandbox import SandboxError
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.patching import make_diff
from katgym_envs.swe.sources.open_source import open_source

Action = dict[str, Any] | str


def make(**kwargs: Any) -> Any:
    return katgym.make("katgym/SWE-v0", tasks="toy", **kwargs)


def first_task() -> str:
    return open_source("toy").tasks("train")[0].instance_id


def play(actions: list[Action], **kwargs: Any) -> tuple[Any, list[str]]:
    """Play actions on the first task; return the env and what came back, a text per message."""
    env = make(**kwargs)
    said: list[str] = []

    async def go() -> None:
        base = env.unwrapped
        observation, _ = await base.areset(seed=0, options={"task_id": first_task()})
        said.extend(m["content"] for m in observation)
        for action in actions:
            observation, _, terminated, truncated, _ = await base.astep(action)
            said.extend(m["content"] for m in observation)
            if terminated or truncated:
                return
        await base.aclose()

    asyncio.run(go())
    return env.unwrapped, said


def call(*calls: tuple[str, dict[str, Any]]) -> Action:
    return katgym.assistant("", list(calls))


def scores(env: Any) -> dict[str, float]:
    assert env.last_reward is not None
    return {name: part.score for name, part in env.last_reward.components.items()}


SUBMIT = call(("submit", {}))


def test_the_opening_tells_the_problem_and_nothing_that_is_hidden() -> None:
    env, said = play([])
    hidden = open_source("toy").load_hidden(first_task())
    assert env.task.prompt in said[0] and "/workspace" in said[0] and "`submit`" in said[0]
    told = json.dumps([said, dict(env.task.data), env.task.answer])
    for secret in [*hidden.fail_to_pass, *hidden.gold_patch.splitlines()[5:]]:
        if secret.startswith("+") or "::" in secret:
            assert secret.lstrip("+ ") not in told


def test_the_gold_patch_resolves_and_measures_as_gold_whatever_the_agents_git_does() -> None:
    patch = open_source("toy").load_hidden(first_task()).gold_patch
    git = "git config core.fsmonitor /bin/false; git add -A; git commit -qm mine; rm -rf .git"
    done = call(("apply_patch", {"patch": patch}), ("bash", {"command": git}), ("submit", {}))
    env, _ = play([done])
    assert env.last_reward.value == 1.0 and env.end_reason == "submitted"
    found = scores(env)
    assert (found["edit_distance"], found["locality"], found["null_final"]) == (0.0, 1.0, 0.0)
    assert env.artifacts["model_patch"] == patch and env.artifacts["outcome"] == "resolved"
    assert (found["fail_to_pass_fraction"], found["pass_to_pass_fraction"]) == (1.0, 1.0)


def test_doing_nothing_earns_nothing_and_a_wrong_edit_is_measured() -> None:
    env, _ = play([SUBMIT])
    assert env.last_reward.value == 0.0 and scores(env)["patch_empty"] == 1.0
    assert "churn" not in scores(env)
    hidden = open_source("toy").load_hidden(first_task())
    path = next(iter(hidden.gold_files))
    break_it = f"echo 'raise RuntimeError' >> {path}"
    env, _ = play([call(("bash", {"command": break_it})), SUBMIT])
    found = scores(env)
    assert env.last_reward.value == 0.0
    assert (found["regressed"], found["num_changed_lines"], found["locality"]) == (1.0, 1.0, 0.0)
    assert found["edit_distance"] > 0.5


def test_what_is_taken_back_is_churn_and_a_null_final() -> None:
    hidden = open_source("toy").load_hidden(first_task())
    path = next(iter(hidden.gold_files))
    env, _ = play(
        [
            call(("bash", {"command": f"cp {path} /tmp/kept; echo 'x = 1' >> {path}"})),
            call(("bash", {"command": f"cp /tmp/kept {path}"})),
            SUBMIT,
        ]
    )
    assert (scores(env)["churn"], scores(env)["null_final"]) == (0.5, 1.0)


def test_parallel_reading_and_a_refused_edit_are_results_of_their_calls() -> None:
    env, said = play(
        [
            call(
                ("grep", {"pattern": "def "}),
                ("find", {"name": "*.py"}),
                ("apply_patch", {"patch": "no patch"}),
                ("view", {"path": "../etc/passwd"}),
            ),
            SUBMIT,
        ]
    )
    results = said[1:5]
    assert "def " in results[0] and ".py" in results[1]
    assert "nothing was changed: no patch found" in results[2]
    found = scores(env)
    assert (found["apply_failures_total"], found["apply_failures_format"]) == (1.0, 1.0)


def test_a_message_without_a_call_is_asked_for_one_once() -> None:
    env, said = play(["I think it is fine.", "Yes, fine."])
    assert "called no tool" in said[1]
    assert env.end_reason == "answered" and env.last_reward.value == 0.0


def test_a_budget_ends_the_episode_and_what_was_done_counts() -> None:
    patch = open_source("toy").load_hidden(first_task()).gold_patch
    look = call(("view", {"path": "."}))
    env, _ = play([call(("apply_patch", {"patch": patch})), look, look], max_turns=2)
    assert env.last_reward.value == 1.0
    assert env.last_reward.failure_kind is FailureKind.MAX_TURNS


def test_a_submit_line_on_stdout_ends_nothing() -> None:
    env, said = play([call(("bash", {"command": "echo submit; echo COMPLETE_TASK"}))])
    assert env.last_reward is None and "[exit code 0]" in said[1]


LEFT_BEHIND = {
    "repository": ("git init -q s && echo 1 > s/a.py", "s"),
    "worktree": ("git worktree add -q wt", "wt"),
    "git in a folder that was there": ("git init -q parcelkit", "parcelkit/.git"),
    "virtual environment": ("python3 -m venv --without-pip .venv", ".venv"),
    "pipe": ("mkfifo p", "p"),
    "socket": (
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'", "sock"
    ),
    "log": ("head -c 9000000 /dev/zero > big.log", "big.log"),
    "sparse file": ("truncate -s 200M sparse", "sparse"),
    "many files": ("mkdir many && (cd many && seq 2100 | xargs touch)", "many/"),
    "link out": ("ln -s /tmp/out out", "out"),
    "line break": ("touch $'a\\nb'", "a\\nb"),
    "no UTF-8": ("touch $'w\\xff.py'", "w\\udcff.py"),
    "set-id": ("echo 1 > t && chmod u+s t", "t"),
    "set-id folder": ("mkdir g && chmod g+s g && echo 1 > g/a.py", "g"),
    "git's name": ("mkdir .GIT && echo 1 > .GIT/config", ".GIT"),
}  # fmt: skip
"""What agents leave: a command, and the path that is told to be left out."""


def fix_beside(*commands: str) -> Any:
    patch = open_source("toy").load_hidden(first_task()).gold_patch
    calls = [("bash", {"command": command}) for command in commands]
    env, said = play([call(*calls), call(("apply_patch", {"patch": patch})), SUBMIT])
    assert all("[exit code 0]" in text for text in said[1 : len(calls) + 1]), said
    return env


def test_a_fix_is_graded_whatever_is_left_beside_it() -> None:
    env = fix_beside(*(command for command, _ in LEFT_BEHIND.values()))
    assert env.last_reward.value == 1.0, env.report.reason
    assert {path for _, path in LEFT_BEHIND.values()} <= set(env.artifacts["dropped_paths"])
    patch = open_source("toy").load_hidden(first_task()).gold_patch
    assert patch in env.artifacts["model_patch"]
    assert "+++ b/g/a.py" in env.artifacts["model_patch"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_a_fix_is_graded_beside_each_thing_that_is_left(name: str) -> None:
    command, path = LEFT_BEHIND[name]
    env = fix_beside(command)
    assert env.last_reward.value == 1.0, env.report.reason
    assert list(env.artifacts["dropped_paths"]) == [path]


def test_only_files_that_were_there_make_a_patch_invalid() -> None:
    path = next(iter(open_source("toy").load_hidden(first_task()).gold_files))
    for command in ("mkfifo {0}", "ln -s /etc/passwd {0}", "truncate -s 200M {0}"):
        spoil = f"rm {path} && {command.format(path)}"
        env, _ = play([call(("bash", {"command": spoil})), SUBMIT])
        assert scores(env)["patch_invalid"] == 1.0
        assert env.report.outcome is Outcome.PATCH_INVALID
    env, _ = play([call(("bash", {"command": "ln -s /etc/passwd leak.txt"})), SUBMIT])
    assert env.report.outcome is Outcome.PATCH_EMPTY
    assert env.artifacts["dropped_paths"] == {
        "leak.txt": "the link's target '/etc/passwd' leads out of the repository"
    }


def test_the_sandbox_dies_with_the_episode() -> None:
    env, _ = play([call(("bash", {"command": "sleep 1000 & echo hi"})), SUBMIT])
    assert env._sandbox is None
    with pytest.raises(katgym.InfrastructureError):
        asyncio.run(env.workspace.sandbox.exec("true"))


def test_a_sandbox_that_breaks_makes_the_reward_invalid() -> None:
    async def go() -> Any:
        env = make().unwrapped
        await env.areset(seed=0)
        await env._sandbox.kill()
        _, value, _, _, _ = await env.astep(SUBMIT)
        return env, value

    env, value = asyncio.run(go())
    assert value != value and not env.last_reward.is_valid
    assert env.last_reward.failure_kind is FailureKind.SANDBOX_ERROR


# ---- edit-run-retry


def broken_patch() -> str:
    """Return a patch after which a module does not work any more."""
    source = open_source("toy")
    path = next(iter(source.load_hidden(first_task()).gold_files))
    first = source.base_files(first_task())[path].decode().splitlines()[0]
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1,2 @@\n {first}\n+raise RuntimeError\n"


@pytest.mark.slow
def test_a_patch_that_breaks_visible_tests_is_taken_back_and_tried_again() -> None:
    gold = open_source("toy").load_hidden(first_task()).gold_patch
    actions: list[Action] = [f"```diff\n{broken_patch()}```", "hm", f"```diff\n{gold}```"]
    env, said = play(actions, mode="edit-run-retry")
    assert "```diff" in said[0] and "3 attempts" in said[0]
    assert "applied and taken back" in said[1] and "RuntimeError" not in said[2]
    assert "not applied" in said[2] and "no visible test fails" in said[3]
    assert env.last_reward.value == 1.0 and env.end_reason == "accepted"
    assert scores(env)["rollback_rate"] == 0.5
    assert scores(env)["apply_failures_total"] == 1.0


def test_a_patch_is_late_only_where_the_base_state_is_in_time() -> None:
    gold = open_source("toy").load_hidden(first_task()).gold_patch

    async def go() -> str:
        env = make(mode="edit-run-retry").unwrapped
        await env.areset(seed=0, options={"task_id": first_task()})
        retry, sandboxes = env.retry, env.retry.backend
        # Runs of the base state put no files.
        retry.backend = BusyBackend(sandboxes, lambda files: bool(files))
        told = await retry.attempt(gold)
        retry.backend = BusyBackend(sandboxes, lambda files: True)
        with pytest.raises(SandboxError, match="do not end in time on the base state"):
            await retry.attempt(gold)
        await env.aclose()
        return str(told)

    assert "taken back: the visible tests did not end within 150 s" in asyncio.run(go())


def test_attempts_run_out_with_the_base_state() -> None:
    env, _ = play([broken_patch()] * 2, mode="edit-run-retry", max_attempts=2)
    assert env.end_reason == "no attempts left"
    assert env.last_reward.value == 0.0 and scores(env)["patch_empty"] == 1.0
    assert scores(env)["rollback_rate"] == 1.0


def test_the_retry_mode_offers_reading_tools_alone() -> None:
    assert set(make(mode="edit-run-retry").unwrapped.tools) == {"view", "grep", "find"}
    _, said = play([call(("bash", {"command": "id"}))], mode="edit-run-retry")
    assert "unknown tool 'bash'" in said[1].lower()


# ---- baselines, wrong use


@pytest.mark.slow  # 14 s: gold and a change of nothing are graded again and again
@pytest.mark.parametrize("mode", ["tools", "edit-run-retry"])
def test_the_contract_holds(mode: str) -> None:
    report = check_env(make(mode=mode), num_tasks=3, checks=CONTRACT)
    assert report.ok, report


@pytest.mark.slow
def test_oracle_and_noop_on_several_tasks() -> None:
    async def go(policy: str) -> list[float | None]:
        found = []
        for seed in range(4):
            rollout = await katgym.run_rollout(make(), katgym.policy(policy), seed=seed)
            found.append(rollout.reward.value)
        return found

    assert asyncio.run(go("oracle")) == [1.0] * 4
    assert asyncio.run(go("noop")) == [0.0] * 4


def test_wrong_arguments_say_what_is_allowed() -> None:
    with pytest.raises(UsageError, match=r"unknown mode 'chat'.*tools"):
        make(mode="chat")
    with pytest.raises(UsageError, match="max_attempts is at least 1"):
        make(max_attempts=0)
    with pytest.raises(UsageError, match="no set of tasks"):
        katgym.make("katgym/SWE-v0", tasks="/nowhere").reset(seed=0)
    with pytest.raises(UnknownNameError, match="no-such"):
        make(sandbox="no-such").reset(seed=0)


@pytest.mark.slow
def test_a_candidate_is_looked_at_with_visible_tests_and_syntax_alone() -> None:
    path, unread = "parcelkit/label.py", "parcelkit/unread.py"
    before = open_source("toy").base_files(first_task())[path]
    wrong, broken = (
        make_diff({path: before}, {path: FileEntry(content=content)})
        for content in (before + b"# .\n", b"raise ValueError\n" + before)
    )
    no_python = make_diff({}, {unread: FileEntry(content=b"def broken(:\n")})

    async def go() -> list[str]:
        base = make().unwrapped
        task = base.tasks("train").get(first_task())
        patches = (wrong, broken, no_python, "nonsense")
        looks = [base.clone().candidate_problem(task, {"model_patch": p}) for p in patches]
        return await asyncio.gather(*looks)

    found = asyncio.run(go())
    assert found[0] == ""  # it may pass all that can be seen and be wrong
    assert "cannot be imported" in found[1] or "fail now" in found[1]
    assert found[2].startswith(f"{unread} is not Python")
    assert "not applied" in found[3]

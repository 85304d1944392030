"""Repair tasks as Harbor's folders: read again, they pay gold and nothing else."""

import asyncio
from pathlib import Path

import pytest

import katgym
from katgym.cli.main import main
from katgym.errors import UsageError
from katgym_envs.swe.sources.open_source import open_source
from katgym_plugin_harbor.env import HarborTasks
from katgym_plugin_harbor.export import export_task

SOURCE = open_source("toy")


def rewards(env: katgym.Env, task_id: str, *actions: object) -> float | None:
    async def main() -> float | None:
        await env.areset(options={"task_id": task_id})
        for action in actions:
            await env.astep(action)
        assert env.last_reward is not None
        return env.last_reward.value

    return asyncio.run(main())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy set's tasks of split test."""
    out = tmp_path_factory.mktemp("exported") / "tasks"
    arguments = ["harbor", "export", "katgym/SWE-v0?tasks=toy", str(out), "--split", "test"]
    assert main([*arguments, "--tasks", "3"]) == 0
    return out


def gold_and_nothing(env: katgym.Env, task_id: str) -> list[float | None]:
    async def play() -> list[float | None]:
        played = [
            await katgym.run_rollout(env, policy, seed=0, task_id=task_id)
            for policy in ("oracle", "noop")
        ]
        return [rollout.reward.value for rollout in played]

    return asyncio.run(play())


def test_exported_tasks_pay_gold_and_not_an_empty_change(folder: Path) -> None:
    env = HarborTasks(path=str(folder))
    assert len(env.tasks("test")) == 3
    assert gold_and_nothing(env, env.tasks("test")[0].task_id) == [1.0, 0.0]


@pytest.mark.slow
def test_the_whole_toy_set_pays_gold_and_not_an_empty_change(tmp_path: Path) -> None:
    assert main(["harbor", "export", "katgym/SWE-v0?tasks=toy", str(tmp_path / "toy")]) == 0
    found = []
    for split in ("train", "validation", "test"):
        env = HarborTasks(path=str(tmp_path / "toy"), split=split)
        found += [gold_and_nothing(env, task.task_id) for task in env.tasks()]
    assert found == [[1.0, 0.0]] * 16


def test_what_decides_how_tests_run_is_the_tasks_own(folder: Path) -> None:
    hook = "def pytest_runtest_logreport(report): report.outcome = 'passed'"
    forged = f"""
    echo "{hook}" | tee conftest.py tests/conftest.py sitecustomize.py
    mkdir _pytest; echo 'raise SystemExit(0)' | tee pytest.py _pytest/__init__.py
    printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini
    rm tests/test_*.py
    """
    env = HarborTasks(path=str(folder))
    action = katgym.assistant("", [("bash", {"command": forged}), ("submit", {})])
    assert rewards(env, env.tasks("test")[0].task_id, action) == 0.0
    assert "passed; not: [" in env.artifacts["verifier_log"]


def test_the_agent_finds_no_hidden_tests_and_the_problem_in_words(folder: Path) -> None:
    task = next(iter(folder.iterdir()))
    hidden = SOURCE.load_hidden(task.name)
    row = SOURCE.row(task.name)
    assert row.problem_statement.strip() in (task / "instruction.md").read_text()
    for path, content in hidden.files.items():
        assert (task / "tests" / "files" / path).read_bytes() == content
    repo = task / "environment" / "repo"
    written = {str(p.relative_to(repo)): p.read_bytes() for p in repo.rglob("*") if p.is_file()}
    assert written == SOURCE.base_files(task.name)


def test_exported_tasks_are_folders_that_harbor_loads(folder: Path) -> None:
    task = pytest.importorskip("harbor.models.task.task", reason="needs harbor and Python 3.12")
    for place in folder.iterdir():
        loaded = task.Task(place)
        assert task.Task.is_valid_dir(place)
        assert loaded.name == f"katgym/{place.name}"
        assert loaded.config.verifier.environment_mode == "separate"


def test_export_refuses_what_it_cannot_write(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        export_task(SOURCE, next(iter(folder.iterdir())).name, folder)
    assert main(["harbor", "export", "katgym/TreasureHunt-v1", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists()

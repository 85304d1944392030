"""Playing Harbor's folders: rewards, what the verifier sees, what is refused."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym.cli.main import main
from katgym.errors import UsageError
from katgym_plugin_harbor.env import EXAMPLE, HarborTasks
from katgym_plugin_harbor.verifier import read_reward


def write_task(folder: Path, files: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write a task whose reward is 1 once /app/done is there; `files`: more, or instead."""
    texts = {
        "task.toml": 'schema_version = "1.4"\n',
        "instruction.md": "Make the file done.\n",
        "environment/Dockerfile": "FROM python:3-slim\nWORKDIR /app\n",
        "tests/test.sh": "#!/bin/bash\n[ -e /app/done ] && echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/bash\ntouch /app/done\n",
    }
    for name, text in {**texts, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def play(env: katgym.Env, task_id: str, *actions: object) -> katgym.Reward:
    async def main() -> katgym.Reward:
        await env.areset(seed=0, options={"task_id": task_id})
        for action in actions or [env.oracle_action()]:
            await env.astep(action)
        await env.aclose()
        assert env.last_reward is not None
        return env.last_reward

    return asyncio.run(main())


def bash(command: str) -> object:
    return katgym.assistant("", [("bash", {"command": command}), ("submit", {})])


@pytest.mark.parametrize("task_id", ["count-words", "median", "merge-logs"])
def test_examples_pay_their_solution_and_nothing_else(task_id: str) -> None:
    env = katgym.make("harbor/Tasks-v0")
    assert play(env, task_id).value == 1.0
    assert play(env, task_id, katgym.assistant("", [("submit", {})])).value == 0.0


def test_a_reward_that_the_agent_writes_is_worth_nothing(tmp_path: Path) -> None:
    env = HarborTasks(path=str(write_task(tmp_path / "task")))
    forged = """
    for f in /logs/verifier/reward.txt /tests/test.sh; do
        printf '#!/bin/bash\\necho 1 > /logs/verifier/reward.txt\\n' > $f; chmod +x $f
    done
    echo 1 > /logs/verifier/reward.txt
    (while true; do echo 1 > /logs/verifier/reward.txt; done) &
    ln -s /logs/verifier /app/logs
    """
    assert play(env, "task", bash(forged)).value == 0.0
    assert "neither reward.json nor reward.txt" in env.artifacts["problem"]
    assert play(env, "task", bash("touch done")).value == 1.0


def test_a_separate_verifier_sees_the_artifacts_alone() -> None:
    env = katgym.make("harbor/Tasks-v0")
    cheat = "echo the > text.txt; echo '[[\"the\", 1]]' > counts.json"
    assert play(env, "count-words", bash(cheat)).value == 0.0
    assert env.artifacts["rewards"] == {"reward": 0, "right_share": 0.0}
    linked = "ln -s /tests/check.py counts.json; ln -s /tests /logs/artifacts/tests"
    assert play(env, "count-words", bash(linked)).value == 0.0


def test_solutions_longer_than_one_command_are_put_there_whole(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        {
            "solution/data": "x" * 300_000,
            "solution/solve.sh": "#!/bin/bash\nwc -c < /solution/data | grep -x 300000 && > done",
        },
    )
    assert play(HarborTasks(path=str(folder)), "task").value == 1.0


def test_variables_reach_solution_and_tests(tmp_path: Path) -> None:
    config = """
    [solution]
    env = { GREETING = "it's ${NOT_SET_ANYWHERE:-hello} you" }
    [verifier]
    env = { WANTED = "it's hello you" }
    """
    folder = write_task(
        tmp_path / "task",
        {
            "task.toml": "\n".join(line.strip() for line in config.splitlines()),
            "solution/solve.sh": '#!/bin/bash\necho "$GREETING" > /app/done\n',
            "tests/test.sh": '#!/bin/bash\n[ "$(cat done)" = "$WANTED" ] && echo 1 > '
            "/logs/verifier/reward.txt\n",
        },
    )
    assert play(HarborTasks(path=str(folder)), "task").value == 1.0


def test_tests_that_take_too_long_pay_nothing(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        {
            "task.toml": "[verifier]\ntimeout_sec = 1\n",
            "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\nsleep 3600\n",
        },
    )
    env = HarborTasks(path=str(folder))
    assert play(env, "task").value == 0.0
    assert env.artifacts["problem"] == "the tests took more than 1 s"


@pytest.mark.parametrize(
    ("name", "text", "reward"),
    [
        ("reward.txt", "0.25\n", 0.25),
        ("reward.json", '{"reward": 1, "speed": 3}', 1.0),
        ("reward.json", '{"score": 0.5}', 0.5),
        ("reward.json", "1", 1.0),
        ("reward.txt", "nan", None),
        ("reward.txt", "1e999", None),
        ("reward.txt", "one", None),
        ("reward.txt", "", None),
        ("reward.json", '{"reward": true}', None),
        ("reward.json", '{"reward": "1"}', None),
        ("reward.json", '{"a": 1, "b": 1}', None),
        ("reward.json", "{}", None),
        ("reward.json", "[1]", None),
        ("reward.json", "[" * 9_000, None),
        ("", "", None),
    ],
)
def test_reward_files_are_numbers_or_nothing(name: str, text: str, reward: float | None) -> None:
    if reward is not None:
        assert read_reward(name, text, "").reward == reward
        return
    with pytest.raises((ValueError, RecursionError)):
        read_reward(name, text, "")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"environment/Dockerfile": "FROM alpine:3\nWORKDIR /app\n"}, "'FROM alpine:3' needs an"),
        (
            {"environment/Dockerfile": "FROM python:3\nRUN apt-get install -y git\nWORKDIR /a\n"},
            "'RUN apt-get install -y git' runs a command",
        ),
        ({"environment/Dockerfile": "FROM python:3\n"}, "no workdir below / is named"),
        ({"environment/docker-compose.yaml": "services: {}\n"}, "needs Docker Compose"),
        ({"task.toml": "[[steps]]\nname = 'a'\n"}, "task.toml sets steps"),
        (
            {"task.toml": "[environment]\nos = 'windows'\n"},
            r"task.toml sets \[environment\] os",
        ),
        ({"task.toml": "[environment]\ngpus = 1\n"}, r"sets \[environment\] gpus"),
        ({"task.toml": "[agent]\nuser = 'dev'\n"}, r"sets \[agent\] user"),
        (
            {"task.toml": "[verifier]\nenv = { KEY = '${NOT_SET_ANYWHERE}' }\n"},
            "needs the environment variable NOT_SET_ANYWHERE",
        ),
        ({"tests/.harborignore": "x\n"}, ".harborignore is not read"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, files: dict[str, str], text: str
) -> None:
    write_task(tmp_path / "good")
    write_task(tmp_path / "bad", files)
    with pytest.raises(UsageError, match=text) as caught:
        HarborTasks(path=str(tmp_path))
    assert "bad: " in str(caught.value) and "good: " not in str(caught.value)
    left = HarborTasks(path=str(tmp_path), only_playable=True)
    assert [task.task_id for task in left.tasks()] == ["good"]


def test_docker_sandboxes_take_the_tasks_images(tmp_path: Path) -> None:
    write_task(
        tmp_path / "one", {"environment/Dockerfile": "FROM debian\nRUN make\nWORKDIR /app\n"}
    )
    write_task(
        tmp_path / "two",
        {
            "task.toml": "[environment]\ndocker_image = 'acme/two:1'\nworkdir = '/srv/two'\n",
        },
    )
    env = HarborTasks(path=str(tmp_path), sandbox="docker", image="harbor-{task}:latest")
    told = [(f.image_name, f.recipe.workdir, f.problems) for f in env.folders.values()]
    assert told == [("harbor-one:latest", "/app", []), ("acme/two:1", "/srv/two", [])]
    with pytest.raises(UsageError, match="image='x' is for sandbox='docker'"):
        HarborTasks(path=str(tmp_path), image="x")


def test_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder of tasks"):
        HarborTasks(path=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="holds no task"):
        HarborTasks(path=str(tmp_path))
    write_task(tmp_path / "task", {"task.toml": "[verifier]\ntimeout_sec = 'long'\n"})
    with pytest.raises(UsageError, match=r"task.toml' is no task.toml of Harbor: Expected `float`"):
        HarborTasks(path=str(tmp_path))


def test_tasks_have_stable_ids_hashes_and_splits(tmp_path: Path) -> None:
    write_task(tmp_path / "b", {"task.toml": "[metadata]\nsplit = 'train'\n"})
    write_task(tmp_path / "a", {"instruction.md": "# a canary line\n\nDo it.\n"})
    env = HarborTasks(path=str(tmp_path))
    assert env.splits == ("train", "test")
    assert [task.task_id for task in env.tasks("test")] == ["a"]
    assert env.tasks("test")[0].prompt == "Do it."
    before = env.tasks("train")[0].sha256
    assert HarborTasks(path=str(tmp_path)).tasks("train")[0].sha256 == before
    (tmp_path / "b" / "tests" / "test.sh").write_text("#!/bin/bash\n")
    assert HarborTasks(path=str(tmp_path)).tasks("train")[0].sha256 != before


def test_the_examples_are_folders_that_harbor_loads() -> None:
    task = pytest.importorskip("harbor.models.task.task", reason="needs harbor and Python 3.12")
    for folder in sorted(EXAMPLE.iterdir()):
        assert task.Task.is_valid_dir(folder)
        assert task.Task(folder).config.schema_version == "1.4"


@pytest.mark.slow
def test_the_contract_holds() -> None:
    env = HarborTasks(path=str(EXAMPLE / "merge-logs"))
    report = check_env(env, num_tasks=4, checks=CONTRACT)
    assert report.ok, report


def test_list_says_what_can_be_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path / "good")
    assert main(["harbor", "list", str(tmp_path)]) == 0
    write_task(tmp_path / "bad", {"environment/Dockerfile": "FROM alpine\nWORKDIR /app\n"})
    capsys.readouterr()
    assert main(["harbor", "list", str(tmp_path), "--json"]) == 1
    bad, good = json.loads(capsys.readouterr().out)
    assert good == {"id": "good", "split": "test", "problems": []}
    assert "needs an image" in bad["problems"][0]

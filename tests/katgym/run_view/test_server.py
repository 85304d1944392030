"""The server of the pages: what it answers, to whom, and what it never reads."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_hunts import Words, made_group
from made_runs import write_evaluation, write_training_lock

from katgym import UsageError
from katgym.cli.main import main
from katgym.evaluation.chain import first_link
from katgym.evaluation.verification.marks import find_mark, keep_mark
from katgym.evaluation.verification.report import VerifyCheck, VerifyReport
from katgym.run_view import FolderSite, Selection, ViewServer, write_folder_pages
from katgym.run_view.reading.found_runs import find_runs, run_row


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs, which no test writes to."""
    folder = tmp_path_factory.mktemp("kept") / "runs"
    write_evaluation(folder / "deep" / "hunt", made_group(Words().encode, 1), num_tasks=1)
    write_evaluation(folder / "part", made_group(Words().encode, 2)[:4], is_finished=False)
    write_training_lock(folder / "grpo")
    (folder / "notes").mkdir()
    (folder / "notes" / "lock.json").write_text('{"other": "tool"}')
    return folder


@pytest.fixture
def runs(kept_runs: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(kept_runs, tmp_path / "runs"))


@pytest.fixture(scope="module")
def server(kept_runs: Path) -> Iterator[ViewServer]:
    with ViewServer(FolderSite(kept_runs)) as started:
        yield started


def get(
    server: ViewServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    """Ask as a client that sends the path as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    skip = "Host" in headers
    connection.putrequest(method, path, skip_host=skip)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read().decode()
    connection.close()
    return found


def test_runs_below_a_folder_are_found_and_told(kept_runs: Path):
    found = find_runs(kept_runs)
    assert [run.name for run in found] == ["deep/hunt", "grpo", "part"]
    hunt, grpo, part = map(run_row, found)
    assert (hunt["rollouts"], hunt["planned"], hunt["kind"]) == (6, 6, "evaluation run")
    assert (part["rollouts"], part["planned"]) == (4, 12)
    assert (grpo["model"], grpo["step"]) == ("models/tiny", 0)
    (alone,) = find_runs(kept_runs / "part")
    assert alone.name == "part"
    with pytest.raises(UsageError, match="is not a folder; name one that holds runs"):
        find_runs(kept_runs / "none")


def test_a_run_that_cannot_be_read_says_why_and_hurts_no_other(runs: Path, tmp_path: Path):
    site = FolderSite(runs)
    with ViewServer(site) as server:
        slug = next(slug for slug in site.runs if slug.startswith("part"))
        whole = (runs / "part" / "lock.json").read_text()
        (runs / "part" / "lock.json").write_text("{")
        status, _, content = get(server, f"/runs/{slug}/index.html")
        assert status == 503 and "is not valid JSON" in content
        assert get(server, "/")[0] == 200
    (runs / "part" / "lock.json").write_text(whole)
    (runs / "part" / "live.sqlite").write_bytes(b"no database" * 100)
    lock = json.loads((runs / "grpo" / "lock.json").read_text())
    (runs / "grpo" / "lock.json").write_text(json.dumps({**lock, "envs": [{"env_id": 3}]}))
    rows = {run.name: run_row(run) for run in find_runs(runs)}
    assert "live.sqlite" in rows["part"]["problem"]
    assert "lock.json has not what a run's has: KeyError('num_tasks')" in rows["grpo"]["problem"]
    assert "problem" not in rows["deep/hunt"]
    pages = write_folder_pages(FolderSite(runs), tmp_path / "out", Selection()).parent
    assert [path.name[:9] for path in (pages / "runs").iterdir()] == ["deep-hunt"]
    assert "live.sqlite" in (pages / "runs.js").read_text()


def test_every_page_and_its_data_are_served(server: ViewServer):
    slug = next(slug for slug in server.site.runs if slug.startswith("deep-hunt"))
    _, _, told = get(server, f"/runs/{slug}/list.js")
    (group,) = json.loads(told.removeprefix("give(").removesuffix(");\n"))["groups"]
    for path, kind in (
        ("/", "text/html"), ("/runs.js", "text/javascript"), ("/compare.html", "text/html"),
        ("/curves.html", "text/html"), ("/leaderboard.html", "text/html"),
        ("/assets/katgym.css", "text/css"), (f"/runs/{slug}/", "text/html"),
        (f"/runs/{slug}/group.html?x=1", "text/html"),
        (f"/runs/{slug}/groups/{group['file']}.js", "text/javascript"),
    ):  # fmt: skip
        status, headers, content = get(server, path)
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8"), path
        assert content and headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert ("data-is-live" in content.split("<main")[0]) == (
            kind == "text/html" and path != "/leaderboard.html"
        )


def test_what_has_not_changed_is_not_sent_again(server: ViewServer):
    _, headers, _ = get(server, "/runs.js")
    assert get(server, "/runs.js", If_None_Match=headers["ETag"])[::2] == (304, "")


def test_other_names_of_this_machine_are_refused(server: ViewServer):
    for host in ("evil.example", "127.0.0.1:1", "localhost", ""):
        status, _, content = get(server, "/runs.js", Host=host)
        assert status == 403 and "deep" not in content, host
    assert get(server, "/", Host=f"localhost:{server.port}")[0] == 200


def test_nothing_but_pages_is_found_and_nothing_is_taken(server: ViewServer):
    paths = (
        "/../../etc/passwd", "/%2e%2e/lock.json", "/runs/part/lock.json",
        "/runs/../part/lock.json", "/assets/../page_frame.py", "/assets/frame.css",
        "/runs/x/index.html", "//etc/passwd", "/part/live.sqlite", "/%00", "/runs/",
    )  # fmt: skip
    assert {path: get(server, path)[0] for path in paths} == dict.fromkeys(paths, 404)
    assert [get(server, "/", method=method)[0] for method in ("POST", "DELETE")] == [501, 501]


def test_written_and_served_pages_are_the_same(kept_runs: Path, server: ViewServer, tmp_path: Path):
    first = write_folder_pages(FolderSite(kept_runs), tmp_path / "out", Selection())
    for path in first.parent.rglob("*.*"):
        name = path.relative_to(first.parent).as_posix()
        if path.suffix in (".html", ".js", ".css"):
            served = get(server, f"/{name}")[2].replace("<body data-is-live ", "<body ", 1)
            assert served == path.read_text(), name


def test_a_mark_is_found_by_the_root_and_never_in_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KATGYM_CACHE", str(tmp_path / "cache"))
    folder = write_evaluation(tmp_path / "run", made_group(Words().encode, 1), num_tasks=1)
    lock = json.loads((folder / "lock.json").read_text()) | {"chain": 1}
    (folder / "lock.json").write_text(json.dumps(lock))
    (run,) = find_runs(folder)
    assert run_row(run)["verified"] == ""
    root = first_link(lock).sha256
    checks = {"episodes": VerifyCheck(name="episodes", num_verified=6)}
    report = VerifyReport(folder="run", policy="p", root=root, num_segments=1, checks=checks)
    keep_mark(report)
    assert run_row(run)["verified"].startswith("✓ rewards; policy not (20")
    assert [path.name for path in (tmp_path / "cache").rglob("*.json")] == [f"{root}.json"]
    assert find_mark(lock | {"seed": 1}, []) == ""


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(kept_runs: Path):
    command = [sys.executable, "-m", "katgym", "view", str(kept_runs)]
    restore = "import signal,sys,os; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    script = f"{restore} os.execv(sys.executable, {command!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        port = int(url.rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("GET", "/runs.js")
        assert '"deep/hunt"' in connection.getresponse().read().decode()
        connection.close()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "3 runs below" in told and told.endswith("ended\n")


def test_what_does_not_go_together_is_refused(
    kept_runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    for arguments, text in (
        (
            [str(kept_runs), "--task", "x"],
            "--task is about a run's transcripts",
        ),
        ([str(kept_runs), "--html", "--serve"], "leave out one of --serve"),
        ([str(tmp_path / "empty"), "--html"], "no run is in or below"),
        ([str(tmp_path / "none")], "is not a folder; name one that holds runs"),
    ):
        assert main(["view", *arguments]) == 2
        assert text in capsys.readouterr().err

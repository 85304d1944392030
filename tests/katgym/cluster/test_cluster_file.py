"""The file of who is where: written while a run goes on, and at its end, whatever that is."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG_S, wait_until_async

from katgym.cluster import cluster_file
from katgym.cluster.cluster_file import keep_file


class Teller:
    """Tells of one worker, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def __call__(self, is_over: bool) -> dict[str, Any]:
        self.asked.append(is_over)
        return {"workers": [{"name": "w0", "num_calls": len(self.asked), "is_up": not is_over}]}


def kept(path: Path, tell: Any) -> Any:
    return keep_file(path, tell, address="10.0.0.7:6379", hosts=["10.0.0.7", "10.0.0.8"])


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_file_is_written_at_once_again_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tell = tmp_path / "cluster.json", Teller()

    async def play() -> tuple[dict[str, Any], float]:
        async with kept(path, tell):
            await wait_until_async(path.exists, "the first file")
            first = read(path)
            await wait_until_async(lambda: len(tell.asked) >= 3, "two more")
        return first, read(path)["written_s"]

    monkeypatch.setattr(cluster_file, "_EVERY_S", 0.01)
    first, last_s = asyncio.run(play())
    assert 0 < first.pop("written_s") <= last_s
    assert first["address"] == "10.0.0.7:6379" and first["hosts"] == ["10.0.0.7", "10.0.0.8"]
    assert first["is_over"] is False and first["workers"][0]["is_up"] is True
    last = read(path)
    assert last["is_over"] is True
    assert last["workers"] == [{"name": "w0", "num_calls": len(tell.asked), "is_up": False}]
    assert tell.asked == [False] * (len(tell.asked) - 1) + [True]
    assert list(tmp_path.iterdir()) == [path]


def test_an_end_is_written_before_the_error_or_the_cancellation_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"

    async def fail() -> None:
        async with kept(path, Teller()):
            await wait_until_async(path.exists, "the first file")
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        asyncio.run(fail())
    assert read(path)["is_over"] is True
    path.unlink()

    async def play(closing: asyncio.Event) -> None:
        async with kept(path, Teller()):
            try:
                await asyncio.Event().wait()
            finally:
                closing.set()

    async def cancel() -> None:
        closing = asyncio.Event()
        playing = asyncio.create_task(play(closing))
        await wait_until_async(path.exists, "the first file")
        playing.cancel()
        await closing.wait()
        playing.cancel()  # once more, while the last one is written
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert read(path)["is_over"] is True

    asyncio.run(cancel())


def test_a_write_under_way_does_not_take_the_place_of_the_last_one(tmp_path: Path) -> None:
    path, is_asked, may_answer = tmp_path / "cluster.json", threading.Event(), threading.Event()
    answers: list[bool] = []

    def tell(is_over: bool) -> dict[str, Any]:
        if not is_over:
            is_asked.set()
            assert may_answer.wait(HANG_S)
        answers.append(is_over)
        return {"ranks": []}

    async def play() -> None:
        async with kept(path, tell):
            await wait_until_async(is_asked.is_set, "the first write")
            asyncio.get_running_loop().call_later(0.1, may_answer.set)  # the end begins before

    asyncio.run(play())
    assert answers == [False, True] and read(path)["is_over"] is True


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    path, tell = tmp_path / "file/cluster.json", Teller()

    async def play() -> str:
        async with kept(path, tell):
            await wait_until_async(lambda: tell.asked, "the first write")
        return "played"

    assert asyncio.run(play()) == "played"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert all(f"{path} is not written: " in message for message in caplog.messages)


def test_nothing_is_written_while_there_is_no_run(tmp_path: Path) -> None:
    asked: list[bool] = []

    async def wait() -> None:
        async with kept(tmp_path / "run/ranks.json", asked.append):  # which returns None
            await wait_until_async(lambda: asked, "the first question")

    asyncio.run(wait())
    assert asked == [False, True]
    assert list(tmp_path.iterdir()) == []

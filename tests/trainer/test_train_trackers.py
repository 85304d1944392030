"""Trackers: the real packages where they are installed, and how they are found and refused."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from katgym import plugins
from katgym.errors import UnknownNameError, UsageError
from katgym.plugins.contributions import Owner
from katgym_trainer.config.run_config import TrackConfig
from katgym_trainer.trackers.tracker import make_tracker, tracking

TOLD: list[object] = []


class Listener:
    """A plugin's tracker that remembers what it was told."""

    def __init__(self, folder: Path, *, mood: str = "calm") -> None:
        self.mood = mood

    def start(self, config: Mapping[str, object]) -> None:
        TOLD.append(("start", self.mood, config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        TOLD.append((step, dict(metrics)))

    def finish(self) -> None:
        TOLD.append("finish")


class Broken(Listener):
    def start(self, config: Mapping[str, object]) -> None:
        raise UsageError("not today")


@pytest.fixture(scope="module", autouse=True)
def listeners() -> None:
    """Register the trackers as a plugin would."""
    staging = plugins.staging(Owner(plugin="acme"))
    register = staging.register_for("katgym_register_trackers")
    register("acme-listener", Listener)
    register("acme-broken", Broken)
    register("acme-gone", "katgym_no_such_module:Tracker")
    staging.commit()


def test_plugins_trackers_are_told_everything_with_their_options(tmp_path: Path) -> None:
    TOLD.clear()
    config = TrackConfig(name="acme-listener", options={"mood": "loud"})
    tracker = make_tracker(config, tmp_path)
    with tracking([tracker], {"run_id": "1"}):
        tracker.log(1, {"train/loss": 2.0})
    assert TOLD == [("start", "loud", {"run_id": "1"}), (1, {"train/loss": 2.0}), "finish"]


def test_trackers_that_started_are_finished_whatever_happens(tmp_path: Path) -> None:
    TOLD.clear()
    listener, broken = Listener(tmp_path), Broken(tmp_path)
    with pytest.raises(UsageError, match="not today"), tracking([listener, broken], {}):
        pass
    assert TOLD == [("start", "calm", {}), "finish"]
    with pytest.raises(ZeroDivisionError), tracking([listener], {}):
        _ = 1 / 0
    assert TOLD[-1] == "finish"


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown tracker 'wandbb'. Did you mean 'wandb'\?"):
        make_tracker(TrackConfig(name="wandbb"), tmp_path)
    words = r"unknown option of tracker 'acme-listener' 'moood'. Did you mean 'mood'\?"
    with pytest.raises(UnknownNameError, match=words):
        make_tracker(TrackConfig(name="acme-listener", options={"moood": 1}), tmp_path)
    with pytest.raises(UsageError, match=r"'acme-gone' of plugin 'acme' cannot be loaded: No mod"):
        make_tracker(TrackConfig(name="acme-gone"), tmp_path)


def test_built_in_trackers_are_registered_and_nothing_is_imported() -> None:
    source = (
        "import sys\nfrom katgym import plugins\n"
        "assert {'tensorboard', 'trackio', 'wandb'} <= set(plugins.trackers())\n"
        "assert 'train' in plugins.commands()\n"
        "heavy = ('torch', 'transformers', 'wandb', 'trackio', 'tensorboard', 'matplotlib')\n"
        "ours = ('katgym_trainer.cli', 'katgym_trainer.trackers', 'katgym_trainer.row')\n"
        "print([m for m in (*heavy, *ours) if m in sys.modules])\n"
    )
    assert run(source) == "[]\n"


def test_a_missing_package_is_named_with_its_command(tmp_path: Path) -> None:
    source = (
        "import pathlib, sys\n"
        "from katgym.errors import MissingDependencyError\n"
        "from katgym_trainer.config.run_config import TrackConfig\n"
        "from katgym_trainer.trackers.tracker import make_tracker\n"
        "for name in sys.argv[2:]:\n"
        "    sys.modules[name] = None  # importing it fails, as where it is not installed\n"
        "    try:\n"
        "        make_tracker(TrackConfig(name=name), pathlib.Path(sys.argv[1]))\n"
        "    except MissingDependencyError as e:\n"
        "        print(e)\n"
    )
    names = ("tensorboard", "trackio", "wandb")
    found = run(source, str(tmp_path), *names).splitlines()
    for name, line in zip(names, found, strict=True):
        words = f"tracker '{name}' needs the package '{name}'. Install: pip install {name}"
        assert line.startswith(words)


def run(source: str, *arguments: str, text: str = "", **variables: str) -> str:
    """Run a script with warnings as errors, as trackers start threads and processes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source, *arguments], input=text,
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


TELL = """
import pathlib, sys
from katgym_trainer.trackers.tracker import make_tracker, tracking
from katgym_trainer.config.run_config import TrackConfig
name, folder, first, last, options = sys.argv[1], pathlib.Path(sys.argv[2]), *sys.argv[3:]
config = TrackConfig(name=name, options=eval(options))
lock = {"run_id": "0a1b2c3d", "run": {"kind": "sft"}, "data": None, "versions": {}}
tracker = make_tracker(config, folder)
with tracking([tracker], lock):
    for step in range(int(first), int(last) + 1):
        tracker.log(step, {"train/loss": step / int(first), "data/epoch": 0.5})
"""


def needs(name: str) -> None:
    pytest.importorskip(name, reason=f"needs the package {name!r}")


@pytest.mark.slow
def test_tensorboard_reads_what_was_told_and_forgets_what_is_told_again(tmp_path: Path) -> None:
    needs("tensorboard")
    for first, last in ((1, 4), (3, 5)):
        assert run(TELL, "tensorboard", str(tmp_path), str(first), str(last), "{}") == ""
    source = (
        "import sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "found = EventAccumulator(sys.argv[1]).Reload()\n"
        "print([(e.step, round(e.value, 4)) for e in found.Scalars('train/loss')])\n"
        "print(found.Tags()['tensors'])\n"
    )
    scalars, texts = run(source, str(tmp_path / "tensorboard")).splitlines()
    assert scalars == "[(1, 1.0), (2, 2.0), (3, 1.0), (4, 1.3333), (5, 1.6667)]"
    assert texts == "['lock/text_summary']"


@pytest.mark.slow
def test_trackio_keeps_what_was_told(tmp_path: Path) -> None:
    needs("trackio")
    database = tmp_path / "trackio"
    options = "{'project': 'toy'}"
    out = run(TELL, "trackio", str(tmp_path), "1", "3", options, TRACKIO_DIR=str(database))
    assert out == ""  # standard output is for results
    source = (
        "from trackio.sqlite_storage import SQLiteStorage as S\n"
        "(name,) = S.get_runs('toy')\n"
        "print(name, [(r['step'], r['train/loss']) for r in S.get_logs('toy', name)])\n"
    )
    found = run(source, TRACKIO_DIR=str(database))
    assert found == f"{tmp_path.name}-0a1b2c3d [(1, 1.0), (2, 2.0), (3, 3.0)]\n"


def leveldb_records(data: bytes) -> list[bytes]:
    """Return the records of a log in LevelDB's format behind a header of 7 bytes, which count.

    Blocks have 32 KiB; a record, or its part, has crc (4), length (2) and type (1): whole, first,
    middle, last (https://github.com/google/leveldb/blob/main/doc/log_format.md).
    """
    records, at, whole = [], 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            records.append(whole)
            whole = b""
    return records


@pytest.mark.slow
def test_wandb_writes_offline_without_an_account(tmp_path: Path) -> None:
    needs("wandb")
    options = "{'project': 'toy', 'mode': 'offline'}"
    assert run(TELL, "wandb", str(tmp_path), "1", "3", options) == ""
    (file,) = tmp_path.glob("wandb/offline-run-*-0a1b2c3d/run-0a1b2c3d.wandb")
    source = (
        "import json, sys\nfrom wandb.proto.wandb_internal_pb2 import Record\n"
        "found = []\n"
        "for line in sys.stdin:\n"
        "    record = Record.FromString(bytes.fromhex(line))\n"
        "    if record.WhichOneof('record_type') == 'history':\n"
        "        items = record.history.item\n"
        "        found.append({i.key or i.nested_key[0]: json.loads(i.value_json)"
        " for i in items})\n"
        "print(json.dumps(found))\n"
    )
    lines = "\n".join(record.hex() for record in leveldb_records(file.read_bytes()))
    found = json.loads(run(source, text=lines))
    assert [line["train/loss"] for line in found] == [1.0, 2.0, 3.0]
    assert [line["_step"] for line in found] == [1, 2, 3]


@pytest.mark.slow
def test_wandb_online_without_an_account_says_what_works(tmp_path: Path) -> None:
    needs("wandb")
    command = [sys.executable, "-c", TELL, "wandb", str(tmp_path), "1", "1", "{'mode': 'online'}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    done = subprocess.run(
        command, env={**environment, "HOME": str(tmp_path)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "UsageError: tracker 'wandb' cannot start: " in done.stderr
    assert 'Hint: mode = "offline" needs no account' in done.stderr

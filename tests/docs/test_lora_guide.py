"""The rehearsal of docs/guides/train-lora.md on a CPU: its files and commands, without an edit."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from katgym.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "train-lora.md").read_text()


@pytest.mark.slow
def test_the_rehearsal_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is cut to two steps: what it begins with succeeds at times already."""
    monkeypatch.chdir(tmp_path)
    rehearsal = PAGE.partition("## First on a CPU")[2]
    for name, text in (("lora.toml", PAGE), ("tiny.toml", rehearsal)):
        Path(name).write_text(text.partition("```toml\n")[2].partition("```")[0])
    commands = re.findall(r"^\$ katgym ((?:.*\\\n)*.*)$", rehearsal, re.M)
    made, imitated, played = (shlex.split(text.replace("\\\n", " ")) for text in commands)
    assert main(made) == 0 and main(imitated) == 0
    assert "--preset" in played and main([*played, "--steps", "2"]) == 0
    lines = [json.loads(line) for line in Path("runs/lora-cpu/eval.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2]
    assert all(line["success"] > 0 for line in lines)
    assert (Path("runs/lora-cpu/model") / "config.json").is_file()

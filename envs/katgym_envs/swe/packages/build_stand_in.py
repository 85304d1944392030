"""Answers pip's questions about an sdist's metadata, so that none of the sdist's code is run.

pip asks a build backend for the metadata of everything it downloads, which runs the package's
`setup.py` or whatever backend it names. `pip_client.py` hands pip this script as the interpreter to
ask with. It is run by pip as `build_stand_in.py NAME VERSION SCRIPT HOOK DIRECTORY`, reads
`DIRECTORY/input.json` and writes `DIRECTORY/output.json` (PEP 517 hooks as `pyproject_hooks` passes
them), and imports nothing but the standard library. Not here: starting pip.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def answer(name: str, version: str, hook: str, arguments: dict[str, object]) -> object:
    """Return what the hook would: no build requirements, and metadata with name and version."""
    if hook.startswith("get_requires_for_"):
        return []
    if hook != "prepare_metadata_for_build_wheel":
        raise SystemExit(f"nothing is built here, and pip asked for {hook!r}")
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = Path(str(arguments["metadata_directory"])) / folder / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def main(arguments: list[str]) -> None:
    """Answer one hook call."""
    name, version, _script, hook, directory = arguments
    asked = json.loads((Path(directory) / "input.json").read_text("utf-8"))
    answered = {"return_val": answer(name, version, hook, asked["kwargs"])}
    (Path(directory) / "output.json").write_text(json.dumps(answered), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

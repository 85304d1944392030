"""Writes the JSON Schemas of `katgym train`'s TOML files, which are in the wheel.

    python docs/make_schemas.py    # trainer/katgym_trainer/schemas/*.json

A test compares them with what the config classes make.
"""

from __future__ import annotations

import json
from pathlib import Path

from katgym_trainer.config.json_schema import make_schemas

FOLDER = Path(__file__).parents[1] / "trainer/katgym_trainer/schemas"


def main() -> None:
    """Write the files; those of no kind of run any more are deleted."""
    schemas = make_schemas()
    for path in FOLDER.glob("*.json"):
        if path.name not in schemas:
            path.unlink()
    for name, schema in schemas.items():
        (FOLDER / name).write_text(f"{json.dumps(schema, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

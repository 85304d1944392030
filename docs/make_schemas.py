"""Writes the JSON Schemas of TOML files, which are in the wheels.

    python docs/make_schemas.py    # the trainer's, the suites' and the SWE factory's

Tests compare them with what the config classes make.
"""

from __future__ import annotations

import json
from pathlib import Path

from katgym.evaluation.suite_config import make_schemas as suite_schemas
from katgym_plugin_swe_factory.pull_requests.filters_schema import make_schemas as factory_schemas
from katgym_trainer.config.json_schema import make_schemas as trainer_schemas

ROOT = Path(__file__).parents[1]
FACTORY = "plugins/katgym-plugin-swe-factory/katgym_plugin_swe_factory"
MADE = {
    "katgym/evaluation/schemas": suite_schemas,
    "trainer/katgym_trainer/schemas": trainer_schemas,
    f"{FACTORY}/schemas": factory_schemas,
}
"""Folder -> what makes its files."""


def main() -> None:
    """Write the files; those of no kind of file any more are deleted."""
    for name, make in MADE.items():
        folder, schemas = ROOT / name, make()
        folder.mkdir(exist_ok=True)
        for path in folder.glob("*.json"):
            if path.name not in schemas:
                path.unlink()
        for file, schema in schemas.items():
            (folder / file).write_text(f"{json.dumps(schema, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

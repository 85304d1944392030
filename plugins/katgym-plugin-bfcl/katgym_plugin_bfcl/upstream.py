"""Parts of bfcl-eval, imported without the hundred packages that it pins.

Its checker of calls imports the configuration of every model it knows, and with it the clients of
all vendors, to read one flag. An empty configuration stands in for it during that import.
"""

from __future__ import annotations

import importlib
import json
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from katgym.plugins.upstream import package_folder, stand_ins

MODEL = "katgym"


def data_folder() -> Path:
    """Return where the questions are; `MissingDependencyError` says how to install them."""
    because = "packages of several GB that nothing here uses"
    return package_folder("bfcl_eval", "bfcl-eval==2026.3.23", because=because) / "data"


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON Lines in the data folder."""
    text = (data_folder() / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@lru_cache(maxsize=1)
def checker() -> ModuleType:
    """Return upstream's module that compares calls with possible answers."""
    models = {MODEL: SimpleNamespace(underscore_to_dot=False)}
    with stand_ins({"bfcl_eval.constants.model_config": {"MODEL_CONFIG_MAPPING": models}}):
        return importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")

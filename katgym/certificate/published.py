"""Certificates as JSON, and those that a plugin publishes beside its module.

    katgym check 'acme/*' --json > katgym_plugin_acme/certificates.json

`katgym envs` shows the floors of what it finds there. Not here: measuring (`certify.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from katgym.certificate.findings import CheckReport

logger = logging.getLogger(__name__)

FILE = "certificates.json"
"""Name of the file in the package that holds a plugin's module."""


def to_json(reports: Sequence[CheckReport]) -> str:
    """Return certificates as the text of a JSON file, a check a line."""
    text = json.dumps(
        {"certificates": [msgspec.to_builtins(report) for report in reports]},
        indent=1,
        ensure_ascii=False,
    )
    return text + "\n"


def read_file(path: Path) -> list[CheckReport]:
    """Read the certificates of a file that `to_json` made."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return msgspec.convert(document["certificates"], list[CheckReport])


@cache
def read_published(module: str) -> Mapping[str, CheckReport]:
    """Return the certificates that the plugin of this module ships: env id -> certificate.

    Empty without a file; a file that cannot be read is left out with a warning.
    """
    package = module.rpartition(".")[0]
    if not package:
        return {}  # a module of its own: nothing lies beside it that is the plugin's
    try:
        file = resources.files(package) / FILE
        if not file.is_file():
            return {}
        with resources.as_file(file) as path:
            return {report.env_id: report for report in read_file(path)}
    except ImportError:
        return {}
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as e:
        logger.warning("the certificates of plugin module %r are left out: %s", module, e)
        return {}

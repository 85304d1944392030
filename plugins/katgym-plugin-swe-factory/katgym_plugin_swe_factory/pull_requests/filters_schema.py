"""JSON Schema of the file that `katgym swe from-prs --filters` takes, derived from its config.

`docs/make_schemas.py` writes it to `katgym_plugin_swe_factory/schemas/`.
"""

from __future__ import annotations

from katgym.config.json_schema import DIALECT, Schema, table_schema
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig


def make_schemas() -> dict[str, Schema]:
    """Return file name -> schema."""
    title = "katgym swe from-prs, --filters"
    return {"filters.json": {"$schema": DIALECT, "title": title, **table_schema(FilterConfig)}}

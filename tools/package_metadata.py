"""What the built package says of itself that depends on where its repository is.

The description on a package index is README.md. Its relative links lead into the repository: with
the variable KATGYM_REPOSITORY (`https://github.com/OWNER/katgym`) at build time they are absolute,
and the project has URLs; without it they are plain text, so that none is dead.

Not here: everything else (`pyproject.toml`). Hatchling runs it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "KATGYM_REPOSITORY"
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)([^)]+)\)")


class RepositoryMetadata(MetadataHookInterface):
    """Adds the description and the URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`."""
        repository = os.environ.get(VARIABLE, "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": resolve_links(text, repository),
        }
        metadata["urls"] = urls(repository)


def resolve_links(text: str, repository: str) -> str:
    """Return Markdown whose relative links lead into a repository; plain text for none."""
    if not repository:
        return _LINK.sub(r"\1", text)
    return _LINK.sub(rf"[\1]({repository}/blob/main/\2)", text)


def urls(repository: str) -> dict[str, str]:
    """Return the project's URLs; none without a repository."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/main/docs/README.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }

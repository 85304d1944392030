"""Tools `run_tests` (the tests the agent can see) and `submit`.

Not here: the hidden tests (`grading/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import katgym
from katgym.errors import ToolError
from katgym.sandbox import SandboxLimits
from katgym_envs.swe.tools.open_workspace import OpenWorkspace, check_texts, output_text

_LIMITS = SandboxLimits(wall_s=300.0, output_bytes=256 << 10)
_PYTEST = ("python3", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider")


class EpisodeTools:
    """Mixed into the env, which has `workspace`, `visible_tests` and `finish`."""

    workspace: OpenWorkspace
    visible_tests: Sequence[str]

    if TYPE_CHECKING:

        def finish(self, reason: str = "") -> None:
            """See `katgym.Env.finish`."""

    @katgym.tool(timeout_s=330.0)
    async def run_tests(self, tests: list[str] | None = None) -> str:
        """Run the repository's tests with pytest.

        Args:
            tests: Files, directories or node ids; by default all test files of the repository.
        """
        chosen = list(tests or self.visible_tests)
        for name in chosen:
            check_texts(tests=name)
            if name.startswith("-"):
                raise ToolError(
                    f"a test is a path or a node id, got {name!r}; use bash for options"
                )
        result = await self.workspace.sandbox.exec(
            [*_PYTEST, *chosen], cwd=self.workspace.root, env=self.workspace.env, limits=_LIMITS
        )
        return output_text(result)

    @katgym.tool()
    def submit(self) -> str:
        """End the episode with the repository as it is; hidden tests then decide."""
        self.finish("submitted")
        return "Submitted."

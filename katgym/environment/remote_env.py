"""The base of envs whose episodes live outside of them: on a server, in a browser, in a program.

Not here: what any env does (`env.py`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from katgym.environment.env import Env
from katgym.errors import UsageError


class RemoteEnv(Env):
    """An env that refuses `copy.deepcopy`: two copies would play the same episode.

    `clone` makes another one with episodes of its own.
    """

    has_fixed_opening = False

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise UsageError(f"{type(self).__name__} cannot be copied: its episode lives elsewhere")

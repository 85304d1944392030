"""The host users behind the users inside a local sandbox.

Not here: mapping them (`launcher/`).
"""

from __future__ import annotations

import os

AGENT_UID = 1000
"""The agent's uid and gid inside a sandbox."""
SUBUID_BASE = 720_000_000
"""As root: uid u inside is SUBUID_BASE + u outside, a range nobody else uses by default."""
NUM_SUBUIDS = 65_536


def layer_owner() -> tuple[int, int] | None:
    """Return the host uid and gid that own layers; None means whoever writes them."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return SUBUID_BASE + AGENT_UID, SUBUID_BASE + AGENT_UID
    return None

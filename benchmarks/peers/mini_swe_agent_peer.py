"""mini-swe-agent's bubblewrap environment: one command each, milliseconds on standard output."""

from __future__ import annotations

import logging
import time

from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment

logging.disable()


def main() -> None:
    """Measure."""
    for _ in range(60):
        began = time.perf_counter()
        environment = BubblewrapEnvironment()
        result = environment.execute({"command": "true"})
        print(f"create + first exec\t{(time.perf_counter() - began) * 1e3}")
        assert result["returncode"] == 0, result
    for _ in range(200):
        began = time.perf_counter()
        result = environment.execute({"command": "true"})
        print(f"exec true\t{(time.perf_counter() - began) * 1e3}")
        assert result["returncode"] == 0, result


if __name__ == "__main__":
    main()

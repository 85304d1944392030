"""A slowed-down oracle in a process of its own, which a test can kill or interrupt in between.

While there is a file `hold` it plays no more than 30 episodes, so that it does not come to an end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SLOW_ORACLE = """
import asyncio, pathlib, sys
import katgym
from katgym.cli.main import main

HOLD = pathlib.Path(__file__).with_name("hold")

class Slow(katgym.Policy):
    name = "oracle"
    num_started = 0
    inner = katgym.policy("oracle")
    def start(self, context):
        session = self.inner.start(context)
        complete = session.complete
        self.num_started += 1
        is_held = self.num_started > 30
        async def slow(messages, *, max_tokens):
            await asyncio.sleep(0.05)
            while is_held and HOLD.exists():
                await asyncio.sleep(0.02)
            return await complete(messages, max_tokens=max_tokens)
        session.complete = slow
        return session
"""


def start_slow_oracle(tmp_path: Path, program: str, *args: object) -> subprocess.Popen[bytes]:
    """Start a Python process that knows `main` and the policy class `Slow`, and runs a program."""
    driver = tmp_path / "driver.py"
    driver.write_text(SLOW_ORACLE + program)
    command = [sys.executable, str(driver), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

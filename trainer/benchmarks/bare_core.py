"""On import: lets the trainer be imported where only torch, triton, numpy and transformers are.

`import katgym` needs gymnasium and msgspec, for environments and rollouts; what the trainer takes
of it for steps on rows does not. Not for use: what trains rollouts needs katgym installed.
"""

import sys
import types
from importlib.util import find_spec
from pathlib import Path

if find_spec("gymnasium") is None or find_spec("msgspec") is None:
    package = types.ModuleType("katgym")
    package.__path__ = [str(Path(__file__).parents[2] / "katgym")]
    sys.modules["katgym"] = package

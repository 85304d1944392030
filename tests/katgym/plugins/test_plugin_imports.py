"""Plugins in processes of their own: what is imported when, by whom first, and with stand-ins."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from katgym.errors import MissingDependencyError
from katgym.plugins.upstream import package_folder, stand_ins


@pytest.mark.slow
def test_a_hook_may_look_at_the_registry_while_it_is_loading(plugin_tree: Any) -> None:
    plugin_tree.add_plugin("alpha")
    source = """
    import katgym

    @katgym.hookimpl
    def katgym_register_envs(register):
        from katgym.plugins import registry
        known = [spec.id for spec in registry.list_envs()]
        register("bravo/Seen-v0", "m:E", description=str("alpha/Shout-v0" in known))
    """
    plugin_tree.add_plugin("bravo", source)
    out = plugin_tree.run(
        """
        import katgym
        print(katgym.spec("bravo/Seen-v0").description)
        """
    )
    assert out == "True\n"


@pytest.mark.parametrize(
    "first",
    ["kpack.plugin", *(pytest.param(f, marks=pytest.mark.slow) for f in ("kpack", "kpack.env"))],
)
def test_a_plugin_imported_first_by_the_user_still_works(plugin_tree: Any, first: str) -> None:
    plugin_tree.add_module("kpack.__init__", "from kpack.env import Shout\n")
    plugin_tree.add_plugin("acme")  # writes the env module that is copied below
    env_module = next(plugin_tree.folder.glob("*_env.py")).read_text()
    plugin_tree.add_module("kpack.env", env_module)
    plugin_tree.add_module(
        "kpack.plugin",
        """
        import katgym
        from kpack import Shout

        @katgym.hookimpl
        def katgym_register_envs(register):
            register("kpack/Shout-v0", Shout)
        """,
    )
    plugin_tree.add_distribution("katgym-plugin-kpack", {"kpack": "kpack.plugin"})
    out = plugin_tree.run(
        f"""
        import {first}
        import katgym, gymnasium
        from katgym.plugins.loader import list_plugins
        print([str(i.status) for i in list_plugins() if i.name == "kpack"])
        print(katgym.make("kpack/Shout-v0").spec.id)
        print(gymnasium.make("kpack/Shout-v0").spec.id)
        """
    )
    assert out == "['loaded']\nkpack/Shout-v0\nkpack/Shout-v0\n"


def test_a_half_imported_plugin_is_pending_until_the_next_use(plugin_tree: Any) -> None:
    module = plugin_tree.add_plugin(
        "acme",
        """
        import katgym
        from katgym.plugins.loader import list_plugins
        seen = [str(i.status) for i in list_plugins() if i.name == "acme"]

        @katgym.hookimpl
        def katgym_register_envs(register):
            register("acme/E-v0", "m:E")
        """,
    )
    out = plugin_tree.run(
        f"""
        import {module}, gymnasium
        print({module}.seen, "acme/E-v0" in gymnasium.registry)
        import katgym
        print([s.id for s in katgym.list_envs() if s.plugin == "acme"])
        print("acme/E-v0" in gymnasium.registry)
        """
    )
    assert out == "['pending'] False\n['acme/E-v0']\nTrue\n"


def test_spawned_workers_load_the_plugins_again(plugin_tree: Any) -> None:
    plugin_tree.add_plugin("acme")
    out = plugin_tree.run(
        """
        import multiprocessing

        def play(seed):
            import katgym
            env = katgym.make("acme/Shout-v0")
            env.reset(seed=seed)
            return env.step(env.oracle_action())[1]

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(play, range(4)))
        """
    )
    assert out == "[1.0, 1.0, 1.0, 1.0]\n"


def test_importing_katgym_does_not_import_env_modules(plugin_tree: Any) -> None:
    module = plugin_tree.add_plugin("acme")
    out = plugin_tree.run(
        f"""
        import sys
        import katgym
        heavy = ("torch", "transformers", "vllm", "docker", "chess", "pyspiel")
        print([m for m in (*heavy, "{module}_env") if m in sys.modules])
        katgym.make("acme/Shout-v0")
        print("{module}_env" in sys.modules)
        """
    )
    assert out == "[]\nTrue\n"


# ---- packages that are installed without their requirements


def test_a_package_is_found_and_a_missing_one_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_of_test").mkdir()
    (tmp_path / "bench_of_test" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        package_folder("bench_of_test", "bench==1", because="torch") == tmp_path / "bench_of_test"
    )
    with pytest.raises(MissingDependencyError, match=r"--no-deps bench==1 .* it brings torch"):
        package_folder("no_bench_of_test", "bench==1", because="torch")


def test_a_module_sees_stand_ins_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "sdk_of_test/__init__.py": "",
        "sdk_of_test/client.py": "CLIENT = 'true'\n",
        "scorer_of_test.py": "from sdk_of_test.client import CLIENT\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    true = importlib.import_module("sdk_of_test.client")
    with stand_ins({"sdk_of_test": {}, "sdk_of_test.client": {"CLIENT": "stand-in"}}):
        scorer = importlib.import_module("scorer_of_test")
    monkeypatch.delitem(sys.modules, "scorer_of_test")
    assert scorer.CLIENT == "stand-in"
    assert importlib.import_module("sdk_of_test.client") is true
    with pytest.raises(ZeroDivisionError), stand_ins({"sdk_of_test": {}}):
        1 / 0  # noqa: B018 - what an import may raise
    assert sys.modules["sdk_of_test.client"] is true
    del sys.modules["sdk_of_test.client"], sys.modules["sdk_of_test"]
    with stand_ins({"sdk_of_test": {"__path__": [str(tmp_path / "sdk_of_test")]}}):
        assert importlib.import_module("sdk_of_test.client") is not true
    assert not {"sdk_of_test", "sdk_of_test.client"} & sys.modules.keys()

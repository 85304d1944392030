"""Plugins are found by metadata, loaded one by one, and refused alone.

Not here: processes and the order of imports (`test_plugin_imports.py`).
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from katgym import plugins
from katgym.errors import UnknownNameError, UsageError
from katgym.plugins.contributions import EntryKind
from katgym.plugins.discovery import PluginInfo, PluginStatus, discover
from katgym.plugins.loader import PluginLoader


def load(tree: Any) -> tuple[PluginLoader, dict[str, PluginInfo]]:
    loader = PluginLoader(lambda: discover([str(tree.folder)]), built_in_modules=())
    return loader, {info.name: info for info in loader.infos()}


@pytest.fixture(autouse=True)
def _all_plugins_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KATGYM_PLUGINS", raising=False)


def test_a_good_plugin_is_loaded_and_recorded(plugin_tree: Any) -> None:
    module = plugin_tree.add_plugin("acme")
    loader, infos = load(plugin_tree)
    info = infos["acme"]
    assert info.status == "loaded"
    assert (info.namespace, info.distribution, info.version) == (
        "acme",
        "katgym-plugin-acme",
        "1.2.3",
    )
    assert (info.module, info.hooks) == (module, ("katgym_register_envs",))
    assert (info.env_ids, info.error) == (("acme/Shout-v0",), None)
    assert info.load_s > 0
    spec = loader.load().envs["acme/Shout-v0"]
    assert (spec.plugin, spec.plugin_version, spec.version) == ("acme", "1.2.3", 0)


GOOD_HOOK = """
import katgym

@katgym.hookimpl
def katgym_register_envs(register):
    register("{}", "m:E")
"""
REFUSED = {
    "import error": ("import no_such_module_anywhere\n", "ModuleNotFoundError: No module named"),
    "exception": ("1 / 0\n", "ZeroDivisionError: division by zero"),
    "syntax error": ("def (:\n", "SyntaxError: "),
    "exit": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "misspelled hook": (
        "import katgym\n@katgym.hookimpl\ndef katgym_register_env(register): pass\n",
        "unknown hook 'katgym_register_env'. Did you mean 'katgym_register_envs'",
    ),
    "misspelled and unmarked": (
        "def katgym_regster_envs(register): pass\n",
        "unknown hook 'katgym_regster_envs'. Did you mean 'katgym_register_envs'",
    ),
    "unmarked hook": (
        "def katgym_register_envs(register): pass\n",
        "hook 'katgym_register_envs' is not marked: put @katgym.hookimpl above it",
    ),
    "no hook": ("x = 1\n", "defines no hook. Known: katgym_register_envs, "),
    "wrong argument": (
        "import katgym\n@katgym.hookimpl\ndef katgym_register_envs(registry): pass\n",
        "Argument(s) {'registry'} are declared in the hookimpl but can not be found",
    ),
    "other API": (
        "katgym_api_version = 99\n" + GOOD_HOOK.format("bad/E-v0"),
        "written for katgym's plugin API 99; this katgym has API 1",
    ),
    "foreign namespace": (
        GOOD_HOOK.format("katgym/E-v0"),
        "env id 'katgym/E-v0' is in namespace 'katgym'; plugin 'bad' may register 'bad/...' only",
    ),
    "malformed id": (GOOD_HOOK.format("bad/E"), "malformed env id 'bad/E'; an id is "),
    "duplicate id": (
        GOOD_HOOK.format("bad/E-v0") + '    register("bad/E-v0", "m:F")\n',
        "env id 'bad/E-v0' is already registered by 'bad'",
    ),
    "bad entry point": (
        GOOD_HOOK.format("bad/E-v0").replace("m:E", "m"),
        "entry point of 'bad/E-v0' is 'module:attribute' or a callable, got 'm'",
    ),
    "hook raises": (
        GOOD_HOOK.format("bad/E-v0") + "    raise RuntimeError('no board')\n",
        "RuntimeError: no board",
    ),
}


@pytest.mark.parametrize(("source", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_a_broken_plugin_is_refused_alone(plugin_tree: Any, source: str, error: str) -> None:
    for namespace in ("alpha", "zulu"):
        plugin_tree.add_plugin(namespace)
    plugin_tree.add_plugin("bad", source)
    loader, infos = load(plugin_tree)
    assert infos["bad"].status == "refused"
    assert error in (infos["bad"].error or "")
    assert (infos["bad"].hooks, infos["bad"].env_ids) == ((), ())
    assert list(loader.load().envs) == ["alpha/Shout-v0", "zulu/Shout-v0"]


def test_a_refused_plugin_leaves_nothing_behind(plugin_tree: Any) -> None:
    source = """
    import katgym

    @katgym.hookimpl
    def katgym_register_policies(register):
        register("bad", "m:policy")

    @katgym.hookimpl
    def katgym_register_envs(register):
        register("bad/First-v0", "m:First")
        register("other/Second-v0", "m:Second")
    """
    plugin_tree.add_plugin("bad", source)
    loader, infos = load(plugin_tree)
    assert infos["bad"].status == "refused"
    assert loader.load().envs == {}
    assert loader.load().entries(EntryKind.POLICY) == {}


def test_an_interrupt_is_not_swallowed(plugin_tree: Any) -> None:
    plugin_tree.add_plugin("bad", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load(plugin_tree)


def test_refusal_is_logged_once(plugin_tree: Any, caplog: pytest.LogCaptureFixture) -> None:
    plugin_tree.add_plugin("bad", "1 / 0\n")
    loader, _ = load(plugin_tree)
    loader.load()
    assert [r.getMessage() for r in caplog.records] == [
        "plugin 'bad' (katgym-plugin-bad) is refused: ZeroDivisionError: division by zero"
    ]


def test_every_kind_of_entry_is_found_again(plugin_tree: Any) -> None:
    source = """
    import katgym

    @katgym.hookimpl
    def katgym_register_policies(register): register("acme", "json:dumps", description="d")
    @katgym.hookimpl
    def katgym_register_sandboxes(register): register("box", "json:dumps")
    @katgym.hookimpl
    def katgym_register_trackers(register): register("track", "json:dumps")
    @katgym.hookimpl
    def katgym_register_exporters(register): register("export", "json:dumps")
    @katgym.hookimpl
    def katgym_register_commands(register): register("command", "json:dumps")
    @katgym.hookimpl
    def katgym_register_algorithms(register):
        register("loss", "mine", "json:dumps")
        register("advantage", "mine", "json:dumps")
    """
    plugin_tree.add_plugin("acme", source)
    loader, _ = load(plugin_tree)
    found = loader.load()
    names = {kind: list(found.entries(kind)) for kind in EntryKind}
    assert names == {
        "policy": ["acme"],
        "sandbox": ["box"],
        "advantage": ["mine"],
        "loss": ["mine"],
        "tracker": ["track"],
        "exporter": ["export"],
        "command": ["command"],
    }
    entry = found.find(EntryKind.POLICY, "acme")
    assert (entry.plugin, entry.description, entry.load()) == ("acme", "d", json.dumps)
    with pytest.raises(UnknownNameError, match=r"unknown policy 'acm'\. Did you mean 'acme'"):
        found.find(EntryKind.POLICY, "acm")


def test_an_unknown_kind_of_algorithm_refuses_the_plugin(plugin_tree: Any) -> None:
    source = """
    import katgym
    @katgym.hookimpl
    def katgym_register_algorithms(register): register("los", "mine", "m:f")
    """
    plugin_tree.add_plugin("acme", source)
    _, infos = load(plugin_tree)
    assert infos["acme"].error == "unknown kind of algorithm 'los'. Did you mean 'loss'?"
    with pytest.raises(UsageError, match="unknown kind of algorithm 'los'"):
        plugins.algorithms("los")


def test_of_two_distributions_with_one_namespace_the_second_is_refused(plugin_tree: Any) -> None:
    module = plugin_tree.add_plugin("acme")
    plugin_tree.add_distribution("zzz-acme", {"acme": module})
    loader = PluginLoader(lambda: discover([str(plugin_tree.folder)]), built_in_modules=())
    assert [(i.distribution, i.status, i.error) for i in loader.infos()] == [
        ("katgym-plugin-acme", "loaded", None),
        (
            "zzz-acme",
            "refused",
            "namespace 'acme' is already taken by distribution 'katgym-plugin-acme'",
        ),
    ]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("katgym", "namespace 'katgym' belongs to katgym itself"),
        ("katgym.more", "namespace 'katgym' belongs to katgym itself"),
        ("a.b", "entry-point name 'a.b' cannot be a namespace"),
    ],
)
def test_reserved_and_dotted_names_are_refused(plugin_tree: Any, name: str, error: str) -> None:
    plugin_tree.add_module("kp_never_imported", "raise AssertionError('imported')\n")
    plugin_tree.add_distribution("katgym-plugin-x", {name: "kp_never_imported"})
    _, infos = load(plugin_tree)
    assert infos[name].status == "refused"
    assert (infos[name].error or "").startswith(error)


def test_katgyms_own_distribution_shares_its_namespace_and_comes_first(plugin_tree: Any) -> None:
    module = plugin_tree.add_plugin("acme")
    for name in ("math", "games"):
        plugin_tree.add_module(
            f"{module}_{name}",
            f"""
            import katgym
            @katgym.hookimpl
            def katgym_register_envs(register): register("katgym/{name.title()}-v0", "m:E")
            """,
        )
    plugin_tree.add_distribution(
        "katgym", {f"katgym.{n}": f"{module}_{n}" for n in ("math", "games")}
    )
    loader, infos = load(plugin_tree)
    assert list(infos) == ["katgym.games", "katgym.math", "acme"]
    assert {i.namespace for i in infos.values()} == {"katgym", "acme"}
    assert list(loader.load().envs) == ["katgym/Games-v0", "katgym/Math-v0", "acme/Shout-v0"]


def test_unreadable_metadata_is_refused_alone(plugin_tree: Any) -> None:
    plugin_tree.add_plugin("acme")
    info = plugin_tree.add_distribution("katgym-plugin-broken", {})
    (info / "entry_points.txt").write_text("[katgym]\nno equals sign\n")
    other = plugin_tree.add_distribution("katgym-plugin-binary", {})
    (other / "entry_points.txt").write_bytes(b"[katgym]\n\xff\xfe = x\n")
    loader, infos = load(plugin_tree)
    assert list(loader.load().envs) == ["acme/Shout-v0"]
    assert infos["katgym-plugin-broken"].status == "refused"
    assert "entry_points.txt cannot be read" in (infos["katgym-plugin-broken"].error or "")


@pytest.mark.parametrize("value", ["acme", " ACME , ", "katgym-plugin-acme", "katgym_plugin_acme"])
def test_the_allow_list_matches_name_namespace_or_distribution(
    plugin_tree: Any, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    plugin_tree.add_plugin("acme")
    plugin_tree.add_plugin("other", "raise AssertionError('imported')\n")
    monkeypatch.setenv("KATGYM_PLUGINS", value)
    loader, infos = load(plugin_tree)
    assert {n: str(i.status) for n, i in infos.items()} == {"acme": "loaded", "other": "disabled"}
    assert list(loader.load().envs) == ["acme/Shout-v0"]


def test_an_empty_allow_list_disables_every_plugin(
    plugin_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin_tree.add_plugin("acme")
    monkeypatch.setenv("KATGYM_PLUGINS", "")
    loader, infos = load(plugin_tree)
    assert infos["acme"].status is PluginStatus.DISABLED
    assert loader.load().envs == {}


def test_an_allowed_plugin_that_is_not_installed_is_listed(
    plugin_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin_tree.add_plugin("acme")
    monkeypatch.setenv("KATGYM_PLUGINS", "acmee")
    _, infos = load(plugin_tree)
    assert infos["acme"].status == "disabled"
    assert infos["acmee"].status == "missing"
    assert infos["acmee"].error == (
        "not installed: unknown plugin in KATGYM_PLUGINS 'acmee'. Did you mean 'acme'?"
    )


def test_threads_load_once_and_all_see_the_result(plugin_tree: Any) -> None:
    source = "import time\ntime.sleep(0.2)\n" + GOOD_HOOK.format("acme/E-v0")
    plugin_tree.add_plugin("acme", source)
    loader = PluginLoader(lambda: discover([str(plugin_tree.folder)]), built_in_modules=())
    seen: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: seen.append(list(loader.load().envs))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["acme/E-v0"]] * 16

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


HOOK = "import katgym\n@katgym.hookimpl\ndef katgym_register_envs(register):"
GOOD_HOOK = HOOK + "\n    register({!r}, 'm:E')\n"
REFUSED = {
    "import_error": ("import no_such_module_anywhere\n", "ModuleNotFoundError: No module named"),
    "raising": ("1 / 0\n", "ZeroDivisionError: division by zero"),
    "syntax_error": ("def (:\n", "SyntaxError: "),
    "exiting": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "misspelled": (
        HOOK.replace("_envs", "_env") + " pass\n",
        "unknown hook 'katgym_register_env'. Did you mean 'katgym_register_envs'",
    ),
    "misspelled_and_unmarked": (
        "def katgym_regster_envs(register): pass\n",
        "unknown hook 'katgym_regster_envs'. Did you mean 'katgym_register_envs'",
    ),
    "unmarked": (
        "def katgym_register_envs(register): pass\n",
        "hook 'katgym_register_envs' is not marked: put @katgym.hookimpl above it",
    ),
    "no_hook": ("x = 1\n", "defines no hook. Known: katgym_register_envs, "),
    "wrong_argument": (
        HOOK.replace("(register)", "(registry)") + " pass\n",
        "Argument(s) {'registry'} are declared in the hookimpl but can not be found",
    ),
    "newer": (
        "katgym_api_version = 99\n" + GOOD_HOOK.format("newer/E-v0"),
        "written for katgym's plugin API 99; this katgym has API 1",
    ),
    "foreign": (
        GOOD_HOOK.format("katgym/E-v0"),
        "env id 'katgym/E-v0' is in namespace 'katgym'; plugin 'foreign' may register"
        " 'foreign/...' only",
    ),
    "malformed": (GOOD_HOOK.format("malformed/E"), "malformed env id 'malformed/E'; an id is "),
    "twice": (
        GOOD_HOOK.format("twice/E-v0") + "    register('twice/E-v0', 'm:F')\n",
        "env id 'twice/E-v0' is already registered by 'twice'",
    ),
    "bad_entry_point": (
        GOOD_HOOK.format("bad_entry_point/E-v0").replace("m:E", "m"),
        "entry point of 'bad_entry_point/E-v0' is 'module:attribute' or a callable, got 'm'",
    ),
    "raising_hook": (
        GOOD_HOOK.format("raising_hook/E-v0") + "    raise RuntimeError('no board')\n",
        "RuntimeError: no board",
    ),
    "other_kind": (
        HOOK.replace("_envs", "_algorithms") + " register('los', 'mine', 'm:f')\n",
        "unknown kind of algorithm 'los'. Did you mean 'loss'?",
    ),
    "policies": (
        HOOK.replace("_envs", "_policies") + " register('bad', 'm:policy')\n"
        + GOOD_HOOK.format("other/Second-v0"),
        "env id 'other/Second-v0' is in namespace 'other'",
    ),
}  # fmt: skip


def test_broken_plugins_are_refused_alone_and_leave_nothing_behind(plugin_tree: Any) -> None:
    for namespace, (source, _) in REFUSED.items():
        plugin_tree.add_plugin(namespace, source)
    for namespace in ("alpha", "zulu"):
        plugin_tree.add_plugin(namespace)
    loader, infos = load(plugin_tree)
    wrong = {
        name: infos[name].error
        for name, (_, error) in REFUSED.items()
        if infos[name].status != "refused" or error not in (infos[name].error or "")
    }
    assert wrong == {}
    assert {(infos[name].hooks, infos[name].env_ids) for name in REFUSED} == {((), ())}
    assert list(loader.load().envs) == ["alpha/Shout-v0", "zulu/Shout-v0"]
    assert loader.load().entries(EntryKind.POLICY) == {}
    with pytest.raises(UsageError, match="unknown kind of algorithm 'los'"):
        plugins.algorithms("los")


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


def test_taken_reserved_and_dotted_namespaces_are_refused(plugin_tree: Any) -> None:
    module = plugin_tree.add_plugin("acme")
    plugin_tree.add_module("kp_never_imported", "raise AssertionError('imported')\n")
    taken = "namespace 'acme' is already taken by distribution 'katgym-plugin-acme'"
    refused = {
        "acme": taken,
        "katgym": "namespace 'katgym' belongs to katgym itself",
        "katgym.more": "namespace 'katgym' belongs to katgym itself",
        "a.b": "entry-point name 'a.b' cannot be a namespace",
    }
    plugin_tree.add_distribution("zzz-acme", {"acme": module})
    for number, name in enumerate(list(refused)[1:]):
        plugin_tree.add_distribution(f"zzz-x{number}", {name: "kp_never_imported"})
    loader = PluginLoader(lambda: discover([str(plugin_tree.folder)]), built_in_modules=())
    first, *others = sorted(loader.infos(), key=lambda info: info.distribution)
    told = (first.distribution, first.status, first.error)
    assert told == ("katgym-plugin-acme", "loaded", None)
    assert {info.status for info in others} == {"refused"}
    assert [info.distribution for info in others] == ["zzz-acme", "zzz-x0", "zzz-x1", "zzz-x2"]
    for info in others:
        assert (info.error or "").startswith(refused[info.name]), info


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


def test_the_allow_list_matches_name_namespace_or_distribution(
    plugin_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin_tree.add_plugin("acme")
    plugin_tree.add_plugin("other", "raise AssertionError('imported')\n")
    allowed = {"acme": "loaded", "other": "disabled"}
    for value in ("acme", " ACME , ", "katgym-plugin-acme", "katgym_plugin_acme"):
        monkeypatch.setenv("KATGYM_PLUGINS", value)
        loader, infos = load(plugin_tree)
        assert {name: str(info.status) for name, info in infos.items()} == allowed, value
        assert list(loader.load().envs) == ["acme/Shout-v0"]
    monkeypatch.setenv("KATGYM_PLUGINS", "")
    loader, infos = load(plugin_tree)
    assert {info.status for info in infos.values()} == {PluginStatus.DISABLED}
    assert loader.load().envs == {}
    monkeypatch.setenv("KATGYM_PLUGINS", "acmee")
    _, infos = load(plugin_tree)
    assert (infos["acme"].status, infos["acmee"].status) == ("disabled", "missing")
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

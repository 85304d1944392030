"""Env ids: registering, finding, making, describing, and the same through Gymnasium."""

from __future__ import annotations

import json
import pickle
import uuid
from typing import Any

import gymnasium
import pytest

import katgym
from katgym.errors import DuplicateIdError, MissingDependencyError, UnknownNameError, UsageError
from katgym.plugins import registry
from katgym.plugins.contributions import EnvSpec, parse_env_id
from katgym.testing import EchoEnv


class Loud(EchoEnv):
    """An env with an argument of its own, and the base's behind `**kwargs`."""

    def __init__(self, *, loudness: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loudness = loudness


class NeedsChessboard(EchoEnv):
    """Imports a package that is not there when it is made."""

    def __init__(self) -> None:
        super().__init__()
        import no_such_chessboard  # noqa: F401 - the point of it


@pytest.fixture
def namespace() -> str:
    """A namespace no other test uses: the registry lives as long as the process."""
    return f"ns{uuid.uuid4().hex[:8]}"


@pytest.fixture
def loud(namespace: str) -> str:
    """A registered env's id."""
    env_id = f"{namespace}/Loud-v2"
    registry.register(env_id, Loud, description="Say it.", kwargs={"loudness": 5})
    return env_id


def test_an_id_is_split_into_its_parts_or_malformed(subtests: pytest.Subtests) -> None:
    ids = {
        "katgym/Arithmetic-v1": ("katgym", "Arithmetic", 1),
        "a_b-c/Tic-Tac.Toe-v12": ("a_b-c", "Tic-Tac.Toe", 12),
        "a/b-v1-v2": ("a", "b-v1", 2),
    }
    assert {env_id: parse_env_id(env_id) for env_id in ids} == ids
    malformed: list[Any] = ["Math-v0", "a/b/c-v0", "a/b", "a/b-v", "a/b-vx", "a.b/c-v0", "a/b:c-v0",
                            "a/ä-v0", "", None, 3]  # fmt: skip
    told = r"malformed env id .*; an id is 'namespace/Name-vN'"
    for env_id in malformed:
        with subtests.test(env_id=env_id), pytest.raises(UsageError, match=told):
            parse_env_id(env_id)
    with pytest.raises(UsageError, match="an env id is a str, got int: 3"):
        katgym.make(3)  # type: ignore[arg-type]  # on purpose


def test_spec_holds_what_was_registered(loud: str) -> None:
    spec = katgym.spec(loud)
    assert isinstance(spec, EnvSpec)
    assert (spec.id, spec.name, spec.version, spec.plugin) == (loud, "Loud", 2, "script")
    assert (spec.description, spec.kwargs) == ("Say it.", {"loudness": 5})
    assert spec in katgym.list_envs()
    assert [s.id for s in katgym.list_envs()] == sorted(s.id for s in katgym.list_envs())


def test_make_merges_arguments(loud: str) -> None:
    assert katgym.make(loud).loudness == 5  # type: ignore[attr-defined]  # Loud's own
    env = katgym.make(loud, loudness=7, max_turns=3)
    assert (env.loudness, env.max_turns) == (7, 3)  # type: ignore[attr-defined]  # Loud's own


def test_gymnasium_makes_the_same_env_with_its_wrappers(loud: str) -> None:
    wrapped = gymnasium.make(loud, loudness=7)
    assert isinstance(wrapped.unwrapped, Loud)
    assert wrapped.unwrapped.loudness == 7
    assert "OrderEnforcing" in str(wrapped)
    observation, _ = wrapped.reset(seed=1)
    assert observation == katgym.make(loud).reset(seed=1)[0]
    assert wrapped.step(wrapped.unwrapped.oracle_action())[1] == 1.0
    wrapped.close()
    envs = gymnasium.make_vec(loud, num_envs=3, vectorization_mode="sync")
    observations, _ = envs.reset(seed=[1, 2, 3])
    alone = [katgym.make(loud).reset(seed=seed)[0] for seed in (1, 2, 3)]
    assert list(observations) == alone
    envs.close()


def test_an_envs_spec_makes_the_env_again(loud: str) -> None:
    for env in (katgym.make(loud, loudness=9), gymnasium.make(loud, loudness=9)):
        assert env.spec is not None
        assert env.spec.id == loud
        text = env.spec.to_json()
        assert json.loads(text)["kwargs"] == {"loudness": 9}
        again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
        assert again.unwrapped.loudness == 9  # type: ignore[attr-defined]  # Loud's own


def test_an_unknown_argument_names_the_nearest(loud: str) -> None:
    for make in (katgym.make, gymnasium.make):
        with pytest.raises(UnknownNameError) as caught:
            make(loud, loudnes=1)
        told = f"unknown argument of {loud!r} 'loudnes'. Did you mean 'loudness'?"
        assert str(caught.value) == told
        with pytest.raises(UnknownNameError, match=r"'max_turn'\. Did you mean 'max_turns'"):
            make(loud, max_turn=1)


def test_an_unknown_id_names_the_nearest_or_the_versions(
    loud: str, namespace: str, subtests: pytest.Subtests
) -> None:
    registry.register(f"{namespace}/Loud-v10", Loud)
    both = f"Use '{namespace}/Loud-v10' or '{namespace}/Loud-v2'."
    cases = {
        "Lowd-v2": f". Did you mean {loud!r}",
        "Loud": f": it has no version. {both}",
        "Loud-v3": f": it is no registered version. {both}",
    }
    for name, text in cases.items():
        with subtests.test(name=name):
            with pytest.raises(UnknownNameError) as caught:
                katgym.make(f"{namespace}/{name}")
            assert str(caught.value).startswith(f"unknown env '{namespace}/{name}'{text}")


def test_registering_twice_is_an_error_unless_replaced(loud: str) -> None:
    with pytest.raises(DuplicateIdError) as caught:
        registry.register(loud, EchoEnv)
    assert str(caught.value) == (
        f"env id {loud!r} is already registered by a script; pass should_replace=True to replace it"
    )
    registry.register(loud, EchoEnv, should_replace=True)
    assert type(katgym.make(loud)) is EchoEnv
    assert type(gymnasium.make(loud).unwrapped) is EchoEnv


def test_a_plugins_namespace_is_not_for_scripts(plugin_tree: Any) -> None:
    with pytest.raises(UsageError, match="namespace 'katgym' belongs to plugin 'katgym"):
        registry.register("katgym/Mine-v0", EchoEnv)
    plugin_tree.add_plugin("acme")
    out = plugin_tree.run(
        """
        import katgym
        from katgym.testing import EchoEnv
        try:
            katgym.register("acme/Mine-v0", EchoEnv)
        except katgym.UsageError as e:
            print(e)
        """
    )
    assert out == "env id 'acme/Mine-v0': namespace 'acme' belongs to plugin 'acme'\n"


def test_a_missing_package_names_the_pip_command(plugin_tree: Any) -> None:
    plugin_tree.add_module("kp_x_env", "import no_such_chessboard\n")
    plugin_tree.add_module("kp_y_env", "import kp_y_env.missing\n")
    plugin_tree.add_module(
        "kp_x",
        """
        import katgym

        @katgym.hookimpl
        def katgym_register_envs(register):
            register("kpx/A-v0", "kp_x_env:A", extra="katgym-plugin-kpx[board]")
            register("kpx/B-v0", "kp_x_env:A")
            register("kpx/C-v0", "kp_y_env:A")
        """,
    )
    plugin_tree.add_distribution("katgym-plugin-kpx", {"kpx": "kp_x"})
    out = plugin_tree.run(
        """
        import katgym, gymnasium
        from katgym.plugins import registry
        for name in "ABC":
            print(registry.describe(f"kpx/{name}-v0")["error"])
            try:
                gymnasium.make(f"kpx/{name}-v0")
            except ImportError as e:
                print(type(e).__name__)
            except katgym.UsageError as e:
                print(type(e).__name__)
        """
    )
    assert out.splitlines() == [
        "env 'kpx/A-v0' needs a package that is missing: No module named 'no_such_chessboard'."
        " Install it with: pip install 'katgym-plugin-kpx[board]'",
        "MissingDependencyError",
        "env 'kpx/B-v0' needs a package that is missing: No module named 'no_such_chessboard'."
        " Plugin 'kpx' names no command that installs it.",
        "MissingDependencyError",
        "entry point 'kp_y_env:A' of 'kpx/C-v0' cannot be imported: No module named"
        " 'kp_y_env.missing'; 'kp_y_env' is not a package. This is a fault of plugin 'kpx'.",
        "UsageError",
    ]


def test_an_extra_of_katgym_itself_becomes_its_pip_command() -> None:
    spec = EnvSpec(
        id="katgym/Chess-v1", namespace="katgym", name="Chess", version=0, plugin="katgym.games",
        plugin_version="0.1.0", distribution="katgym", entry_point=NeedsChessboard, extra="chess",
    )  # fmt: skip
    assert spec.install_command == "pip install 'katgym[chess]'"
    with pytest.raises(MissingDependencyError) as caught:
        registry.create(spec)
    assert str(caught.value) == (
        "env 'katgym/Chess-v1' needs a package that is missing: No module named"
        " 'no_such_chessboard'. Install it with: pip install 'katgym[chess]'"
    )


def test_the_text_for_an_unknown_id_tells_its_plugins_fate(plugin_tree: Any) -> None:
    plugin_tree.add_plugin("acme", "1 / 0\n")
    plugin_tree.add_plugin("other")
    script = """
    import katgym
    for name in ("acme", "other"):
        try:
            katgym.make(f"{name}/Shout-v0")
            print("made")
        except katgym.KatgymError as e:
            print(str(e)[-85:])
    """
    refused, made = plugin_tree.run(script).splitlines()
    assert refused.endswith("Plugin 'acme' is refused: ZeroDivisionError: division by zero.")
    assert made == "made"
    lines = plugin_tree.run(script, plugins="").splitlines()
    assert lines[0].endswith("Plugin 'acme' is disabled.")
    assert lines[1].endswith("Plugin 'other' is disabled.")


def test_describe_is_json_with_tools_and_splits(loud: str) -> None:
    described = registry.describe(loud)
    assert json.loads(json.dumps(described)) == {
        "id": loud,
        "plugin": "script",
        "plugin_version": "",
        "version": 2,
        "description": "Say it.",
        "tools": ["echo", "note"],
        "splits": ["train", "validation", "test"],
        "max_turns": 4,
        "success": "reward at least 1",
        "headline": "success_rate",
        "error": None,
    }


def test_an_env_that_cannot_be_made_is_described_with_its_error(namespace: str) -> None:
    def broken() -> None:
        raise RuntimeError("no board")

    registry.register(f"{namespace}/Broken-v0", broken)
    described = registry.describe(f"{namespace}/Broken-v0")
    assert (described["error"], described["tools"]) == ("RuntimeError: no board", [])
    registry.register(f"{namespace}/Dict-v0", dict)
    with pytest.raises(UsageError, match=r"makes a katgym\.Env, got dict"):
        katgym.make(f"{namespace}/Dict-v0")


def test_an_env_removed_from_gymnasium_comes_back(loud: str) -> None:
    del gymnasium.registry[loud]
    registry.sync_gymnasium()
    assert gymnasium.spec(loud).id == loud

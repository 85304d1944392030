"""The env in which programs may compute: what they reach, and what answers earn."""

from __future__ import annotations

import asyncio
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import katgym
from katgym.sandbox import close_shared_backends


@pytest.fixture(scope="module", autouse=True)
def _no_sandbox_is_left() -> Iterator[None]:
    yield
    close_shared_backends()


def _call(code: str) -> Any:
    return katgym.assistant("", [("python", {"code": code})])


def _play(*programs: str) -> list[str]:
    env = katgym.make("katgym/MathCode-v1")
    env.reset(seed=0)
    texts = [env.step(_call(program))[0][0]["content"] for program in programs]
    env.close()
    return texts


def test_programs_print_share_files_but_no_variables_and_reach_no_network() -> None:
    texts = _play(
        "x = 2 ** 100; print(x); open('kept', 'w').write('7')",
        "print(open('kept').read(), flush=True); print(x)",
        "1 + 1",
        "import socket; socket.create_connection(('1.1.1.1', 53), 1)",
        "print('\\x1b[31mred')",
    )
    assert texts[0] == "1267650600228229401496703205376\n"
    assert texts[1].startswith("7\n") and "NameError" in texts[1]
    assert texts[1].endswith("[ended with exit code 1]")
    assert texts[2] == "[no output]"
    assert "Network is unreachable" in texts[3]
    assert texts[4] == "\\x1b[31mred\n"


def test_no_gold_answer_is_within_reach_of_a_program() -> None:
    walk = (
        "import os\n"
        "def walk(top, without):\n"
        "    for folder, folders, files in os.walk(top):\n"
        "        folders[:] = [f for f in folders if os.path.join(folder, f) not in without]\n"
        "        yield from (file for file in files if file == 'problems.jsonl')\n"
    )
    parts = ["/usr/lib", "/usr/share"]  # programs of their own: each has twenty seconds
    texts = _play(
        "import importlib.util as u; print(u.find_spec('katgym_envs'), u.find_spec('katgym'))",
        walk + f"print(list(walk('/', {parts})))",
        *(walk + f"print(list(walk({part!r}, [])))" for part in parts),
    )
    assert texts == ["None None\n", "[]\n", "[]\n", "[]\n"]


def test_what_is_installed_beside_the_base_interpreter_is_hidden() -> None:
    """Katgym may be installed there, with its problems."""
    at = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    packages = Path(sysconfig.get_path("purelib", vars=at))
    if not packages.is_dir():
        pytest.skip(f"this Python installs nothing in {packages}")
    assert any(packages.iterdir()), "nothing there to hide"
    code = f"import os, sys; print(os.listdir({str(packages)!r}), sys.prefix != sys.base_prefix)"
    assert _play(code) == ["[] True\n"]


def test_oracle_earns_the_maximum_and_a_program_does_not_end_the_episode() -> None:
    env = katgym.make("katgym/MathCode-v1")
    env.reset(seed=3)
    _, value, terminated, _, _ = env.step(_call("print(1)"))
    assert (value, terminated) == (0.0, False)
    _, value, terminated, _, _ = env.step(env.unwrapped.oracle_action())
    assert (value, terminated) == (1.0, True)
    assert env.unwrapped.last_reward.components["programs"].score == 1


def test_a_wrong_answer_earns_nothing() -> None:
    rollout = asyncio.run(katgym.run_rollout(katgym.make("katgym/MathCode-v1"), "noop", seed=0))
    assert rollout.reward.value == 0.0


def test_an_unknown_sandbox_is_refused_with_the_nearest_name() -> None:
    env = katgym.make("katgym/MathCode-v1", sandbox="locl")
    with pytest.raises(katgym.UnknownNameError, match="Did you mean 'local'"):
        env.reset(seed=0)


def test_a_sandbox_that_dies_makes_the_reward_invalid() -> None:
    async def play() -> katgym.Rollout:
        env = katgym.make("katgym/MathCode-v1").unwrapped
        policy = katgym.testing.ScriptedPolicy([_call("print(1)"), _call("print(2)"), "done"])

        @katgym.tool()
        async def python(self: Any, code: str) -> str:
            """Run it, with the sandbox gone.

            Args:
                code: The program.
            """
            await self._sandbox.kill()
            return str(await type(env).python(self, code))

        broken = type("Broken", (type(env),), {"python": python})()
        return await katgym.run_rollout(broken, policy, seed=0)

    rollout = asyncio.run(play())
    assert rollout.status == "failed"
    assert not rollout.reward.is_valid
    assert json.loads(json.dumps(rollout.reward.to_json()))["failure_kind"] == "sandbox_error"

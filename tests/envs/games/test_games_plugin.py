"""The plugin registers the games without loading them."""

import os
import subprocess
import sys


def test_the_plugin_registers_three_games_and_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from katgym_envs.games import plugin\n"
        "seen = {}\n"
        "plugin.katgym_register_envs(lambda env_id, **kw: seen.update({env_id: kw}))\n"
        "print(sorted(seen), [seen[i].get('extra') for i in sorted(seen)])\n"
        "print(sorted({'chess', 'pyspiel', 'open_spiel'} & set(sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "['katgym/Chess-v1', 'katgym/OpenSpiel-v0', 'katgym/TreasureHunt-v1']"
        " ['chess', 'games', None]",
        "[]",
    ]

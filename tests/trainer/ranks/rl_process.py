"""`katgym` with the env of `rl_play.py`: a script for torchrun, which starts no `-c`."""

import sys

from rl_play import register_env

from katgym.cli.main import main

if __name__ == "__main__":
    register_env()
    sys.exit(main(sys.argv[1:]))

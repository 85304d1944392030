"""`python -m katgym`: the command line, for the interpreter that runs it."""

import sys

from katgym.cli.main import main

sys.exit(main())

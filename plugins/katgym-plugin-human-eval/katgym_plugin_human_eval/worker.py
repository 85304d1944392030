"""Runs in the sandbox: calls the answer's function and writes what it returns, as one line.

Nothing here is trusted: an answer may write any line it likes, and those are its values.
"""

import ast
import sys
from typing import Any


def main() -> None:
    """Read program, name and calls from standard input; write the values."""
    program, name, calls = ast.literal_eval(sys.stdin.read())
    names: dict[str, Any] = {"__name__": "answer"}
    exec(compile(program, "answer.py", "exec"), names)
    values = [names[name](*arguments) for arguments in calls]
    sys.stdout.write("\n" + repr(values) + "\n")


main()

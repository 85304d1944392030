"""Collect rollouts into a store; look at, export and tidy up what it keeps.

example:
  katgym rollouts collect katgym/Arithmetic-v1 --policy smollm2 --group-size 8 --store rollouts
  katgym rollouts show rollouts
  katgym rollouts show rollouts s-01 --text
  katgym rollouts export rollouts --format messages --min-reward 1 --out sft.jsonl
  katgym rollouts stats rollouts --json
  katgym rollouts gc rollouts --older-than 30 --dry-run
"""

SUBCOMMANDS = {
    "collect": "play groups of rollouts into a store, to be trained on later",
    "show": "list sessions, or show one as a tree of its calls",
    "export": "write rollouts to a file that other libraries read",
    "stats": "count sessions, calls, tokens and bytes",
    "gc": "seal what has ended, drop what is not wanted, give space back",
}
"""Subcommand -> its line of help, with a module `<name>_command` here."""

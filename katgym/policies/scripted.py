"""`scripted:FILE`: plays the actions written in a file; for demos, fixtures and replays.

FILE holds one action per turn, as JSON Lines or as one JSON list: a string, or an assistant
message. A JSON object maps task ids to such lists. Past the end the message is empty.

    "First I look."
    {"content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}

Not here: doubles for tests in Python (`katgym.testing.ScriptedPolicy`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from katgym.environment.messages import Action, Message, normalize_action
from katgym.errors import UsageError, unknown_name
from katgym.policies.action_policy import ActionPolicy
from katgym.policies.base import EpisodeContext

Script = list[Message]


def play_script(script: Script | Mapping[str, Script], name: str) -> ActionPolicy:
    """Return a policy that plays one script in every episode, or one per task id."""

    def begin(context: EpisodeContext) -> Iterator[Action]:
        if isinstance(script, list):
            return itertools.chain(script, itertools.repeat(""))
        task_id = context.env.task.task_id
        if task_id not in script:
            raise UsageError(unknown_name(f"task id in {name!r}", task_id, script))
        return itertools.chain(script[task_id], itertools.repeat(""))

    return ActionPolicy(name, begin)


def load_script(path: Path) -> Script | dict[str, Script]:
    """Read a script file; `UsageError` names the line of what cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8")  # a reader of text would also split at "\r"
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the script {str(path)!r}: {e}") from e
    try:
        whole = json.loads(text)
    except ValueError:
        script = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as e:
                raise UsageError(f"{path}:{number}: not JSON ({e}): {line!r:.100}") from e
            script.append(_action(value, f"{path}:{number}"))
        return script
    if isinstance(whole, list):
        return [_action(item, f"{path}: action {i}") for i, item in enumerate(whole, 1)]
    if isinstance(whole, dict) and not {"role", "content", "tool_calls"} & whole.keys():
        return {
            task_id: _actions(items, f"{path}: {task_id!r}") for task_id, items in whole.items()
        }
    return [_action(whole, f"{path}:1")]


def from_uri(rest: str) -> ActionPolicy:
    """Return the policy of `scripted:{rest}`."""
    if not rest:
        raise UsageError("the policy URI ends too early; its form is scripted:FILE")
    return play_script(load_script(Path(rest).expanduser()), f"scripted:{rest}")


def _actions(items: object, where: str) -> Script:
    if not isinstance(items, list):
        raise UsageError(f"{where}: a list of actions is needed, got {items!r:.100}")
    return [_action(item, f"{where}: action {i}") for i, item in enumerate(items, 1)]


def _action(value: object, where: str) -> Message:
    try:
        return normalize_action(value)
    except UsageError as e:
        raise UsageError(f"{where}: {e}") from e

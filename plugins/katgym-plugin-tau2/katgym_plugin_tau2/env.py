"""The env of all domains: an agent serves a user by the domain's policy, with its tools.

Graded by the state of the database at the end, or by upstream's assertions about it, and by what
the agent has to have told the user. Not here: the services (`services.py`), the user (`users.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import katgym
from katgym.environment.messages import Action, Message, ToolCallMessage, assistant, system, user
from katgym.environment.scheduler import run_calls
from katgym.environment.thinking import split_thinking
from katgym_plugin_tau2 import services
from katgym_plugin_tau2.plugin import DOMAINS
from katgym_plugin_tau2.upstream import Store, UpstreamToolError
from katgym_plugin_tau2.users import DONE, Customer, PolicyUser, ScriptedUser, as_instruction

INSTRUCTIONS = (
    "You are a customer service agent. In each message you either call tools or write to the user."
    " Follow the policy.\n\n<policy>\n{policy}\n</policy>"
)
TRANSFER = "transfer_to_human_agents"
NO_EFFECT = ("calculate", TRANSFER)
MAX_NUMBERS = 40
"""Different numbers in a message that can tell the user something: a list of all is no answer."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Service(katgym.Env):
    """One of tau2's domains; upstream's train and test tasks.

    domain: one of `DOMAINS`; the env's id sets it.
    user: "" for the scripted user, or the policy that plays the user, as a URI or an object.
    """

    splits = ("train", "test")
    default_max_turns = 60

    def __init__(self, *, domain: str, user: str | katgym.Policy = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.domain = katgym.errors.check_name("domain", domain, tuple(DOMAINS))
        self.user_policy = user
        self.user: Customer | None = None
        self.is_deterministic = not user  # type: ignore[misc]  # told by the instance
        self.has_fixed_opening = not user

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        chosen = set(services.read_file(self.domain, "split_tasks.json")[split])
        name = "tasks.json.gz" if self.domain == "telecom" else "tasks.json"
        items = [i for i in services.read_file(self.domain, name) if i["id"] in chosen]
        tasks = [_task(self.domain, item) for item in items]
        return [
            task
            for task in tasks
            if task.task_id not in services.SILENT and not (split == "test" and _is_transfer(task))
        ]

    async def setup(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.num_gold = 0
        self.store = services.new_store(self.domain, self.task.data["initial"])
        self.tools = services.tools_of(*services.AGENT_TOOLS[self.domain])
        place = services.USER_TOOLS.get(self.domain)
        self.user_tools = services.tools_of(*place) if place else {}
        given = (self, self.user_tools, self.run_user_calls)
        policy = self.user_policy
        self.user = PolicyUser(*given, policy=policy) if policy else ScriptedUser(*given)

    async def opening(self) -> list[Message]:
        files = services.POLICIES[self.domain]
        policy = "\n\n".join(services.read_file(self.domain, name) for name in files)
        assert self.user is not None
        said = await self.user.answer(None)
        return [system(INSTRUCTIONS.format(policy=policy)), user(said or "")]

    async def reply(self, message: Message) -> str | None:
        assert self.user is not None
        return await self.user.answer(message["content"])

    async def after_tools(self, results: Sequence[katgym.ToolResult]) -> Sequence[Message]:
        self._note_calls("assistant", self.messages[-1].get("tool_calls", ()), results)
        if any(who == "assistant" and name == TRANSFER for who, name, _ in self.calls):
            self.finish("transferred")
        return ()

    async def teardown(self) -> None:
        user, self.user = self.user, None
        if user is not None:
            await user.aclose()

    async def run_user_calls(self, calls: Sequence[ToolCallMessage]) -> list[Message]:
        """Run calls of the user's tools, and return their results."""
        results = await run_calls(self.user_tools, calls, self.scheduler, owner=self)
        self._note_calls("user", calls, results)
        return [result.to_message() for result in results]

    def _note_calls(
        self, who: str, calls: Sequence[ToolCallMessage], results: Sequence[katgym.ToolResult]
    ) -> None:
        """Keep the calls that ran, for tasks that are graded by them."""
        for call, result in zip(calls, results, strict=True):
            if result.error is None:
                arguments = json.loads(call["function"]["arguments"] or "{}")
                self.calls.append((who, result.name, arguments))

    @katgym.scorer()
    def state(self) -> bool:
        """Whether the database is as it has to be; where the task says so, also the calls made."""
        data = self.task.data
        if _is_transfer(self.task):
            before = services.new_store(self.domain, data["initial"])
            accounts = next(iter(before))
            if self.store[accounts].db != before[accounts].db:
                return False
        if data["assertions"] is not None:
            calls = data["actions"] if "ACTION" in data["basis"] else []
            return all(map(self._holds, data["assertions"])) and all(map(self._was_called, calls))
        gold = _after_gold(self.domain, data["actions"])
        return all(self.store[key].db == service.db for key, service in gold.items())

    @katgym.scorer(gate=True)
    def told(self) -> bool:
        """Whether a message to the user holds each text that the task asks for."""
        own = (m["content"] for m in self.messages if m["role"] == "assistant")
        said = [split_thinking(content)[1] for content in own]
        return all(any(is_told(info, text) for text in said) for info in self.task.data["told"])

    def oracle_action(self) -> Action:
        actions = self.task.data["actions"]
        if self.num_gold == len(actions):
            return " ".join([DONE + ".", *self.task.data["told"]])
        action = actions[self.num_gold]
        self.num_gold += 1
        if action.get("requestor") == "user":
            return as_instruction(action["name"], action["arguments"])
        return assistant("", [(action["name"], action["arguments"])])

    def _holds(self, assertion: Mapping[str, Any]) -> bool:
        return bool(services.call_service(self.store, assertion) == assertion["assert_value"])

    def _was_called(self, action: Mapping[str, Any]) -> bool:
        who, name = action.get("requestor") or "assistant", action["name"]
        wanted, keys = action["arguments"], action.get("compare_args")
        made = [arguments for *call, arguments in self.calls if call == [who, name]]
        if keys is None:
            return any(arguments == wanted or name == TRANSFER for arguments in made)
        return any(all(a.get(key) == wanted.get(key) for key in keys) for a in made)


def is_told(info: str, text: str) -> bool:
    """Return whether a message tells the user `info`, as whole words and not among all numbers."""
    plain = text.lower().replace(",", "")
    if len(set(_NUMBER.findall(plain))) > MAX_NUMBERS:
        return False
    return re.search(rf"(?<![\w.]){re.escape(info.lower())}(?!\w|\.\d)", plain) is not None


def _is_transfer(task: katgym.Task) -> bool:
    """Return whether all that a task asks for is to hand the user to a human."""
    return [action["name"] for action in task.data["actions"]] == [TRANSFER]


def _task(domain: str, item: Mapping[str, Any]) -> katgym.Task:
    criteria = item["evaluation_criteria"]
    data = {
        "scenario": item["user_scenario"],
        "initial": (item.get("initial_state") or {}).get("initialization_actions") or [],
        "actions": criteria.get("actions") or [],
        "assertions": criteria.get("env_assertions"),
        "basis": criteria.get("reward_basis") or [],
        "told": criteria.get("communicate_info") or [],
    }
    task_id = item["id"] if domain == "telecom" else f"{domain}-{item['id']}"
    return katgym.Task(task_id=task_id, data=data)


def _after_gold(domain: str, actions: Sequence[Mapping[str, Any]]) -> Store:
    """Return the services after a task's actions; those that fail change nothing, as upstream."""
    store = services.new_store(domain)
    for action in actions:
        if action["name"] not in NO_EFFECT:
            call = {"env_type": "assistant", "func_name": action["name"]}
            try:
                services.call_service(store, call | {"arguments": action["arguments"]})
            except UpstreamToolError:
                continue
    return store

"""Tools: functions offered to the policy, with a JSON schema made from hints and docstring.

Not here: running the calls of a turn (`scheduler.py`).
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar, get_type_hints, overload

import jsonschema
import msgspec

from katgym.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__katgym_tool__"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
RESERVED_NAMES = frozenset({"reset", "step", "areset", "astep", "state", "close", "render"})
"""The policy sees tools only; a tool may not be called like a part of the env's own interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What `@katgym.tool` was given."""

    is_parallel: bool = False
    """Calls of this tool may run at the same time as other parallel calls of the turn."""
    timeout_s: float | None = None
    """Wall seconds for one call; None takes the scheduler's `tool_timeout_s`."""
    name: str | None = None
    """Name shown to the policy; None takes the function's."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function offered to the policy.

    `parameters` is a JSON Schema of type object. `fn` takes the validated arguments as keywords;
    an `async def` runs on the event loop, a `def` in a thread of its own, so that a slow one never
    holds up other rollouts. A `def` cannot be killed: after a timeout its thread is abandoned.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    fn: Callable[..., Any]
    is_parallel: bool = False
    timeout_s: float | None = None
    takes_self: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}  # nothing cached

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"tool name {self.name!r} does not match [a-zA-Z0-9_-]{{1,64}}")
        if self.name in RESERVED_NAMES:
            raise UsageError(
                f"tool name {self.name!r} is reserved: the policy sees tools only, never the env's"
                f" own methods ({', '.join(sorted(RESERVED_NAMES))})"
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise UsageError(f"tool {self.name!r}: timeout_s is > 0, got {self.timeout_s!r}")
        try:
            jsonschema.Draft202012Validator.check_schema(dict(self.parameters))
        except jsonschema.SchemaError as e:
            raise UsageError(f"tool {self.name!r} has no valid JSON Schema: {e.message}") from e

    @cached_property
    def is_async(self) -> bool:
        """Whether `fn` is a coroutine function, or an object called like one."""
        call = self.fn if inspect.isroutine(self.fn) else getattr(self.fn, "__call__", None)  # noqa: B004 - the method itself is inspected
        return inspect.iscoroutinefunction(self.fn) or inspect.iscoroutinefunction(call)

    @cached_property
    def validator(self) -> jsonschema.Draft202012Validator:
        """The compiled schema."""
        return jsonschema.Draft202012Validator(dict(self.parameters))

    @cached_property
    def converters(self) -> Mapping[str, Any]:
        """Argument name -> type, for those whose Python value differs from its JSON value."""
        hints = _hints(self.fn) if inspect.isroutine(self.fn) else {}
        return {
            k: t for k, t in hints.items() if k != "return" and t not in _PLAIN and t is not Any
        }

    @cached_property
    def simple_types(self) -> Mapping[str, type] | None:
        """Argument name -> exact JSON type when the schema says nothing more, else None."""
        if set(self.parameters) - {"type", "properties", "required", "additionalProperties"}:
            return None
        if self.parameters.get("additionalProperties") is not False:
            return None
        types: dict[str, type] = {}
        for name, schema in self.parameters.get("properties", {}).items():
            kind = _SIMPLE.get(schema.get("type")) if isinstance(schema, Mapping) else None
            if kind is None or set(schema) - {"type", "description", "title", "default"}:
                return None
            types[name] = kind
        return types

    def argument_error(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with `arguments`, or None when they fit the schema.

        All violations are listed, so that a policy can mend them in one turn.
        """
        simple = self.simple_types
        if (
            simple is not None
            and arguments.keys() >= set(self.parameters.get("required", ()))
            and all(type(v) is simple.get(k) for k, v in arguments.items())
        ):
            return None
        errors = sorted(self.validator.iter_errors(dict(arguments)), key=lambda e: list(e.path))
        if not errors:
            return None
        where = ("/".join(str(p) for p in e.absolute_path) for e in errors)
        return "; ".join(
            f"{place}: {e.message}" if place else e.message
            for place, e in zip(where, errors, strict=True)
        )

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments of the annotated types (enums, dataclasses, tuples, ...).

        JSON has one kind of number: `2.0` fits an `int` and arrives as 2, `2` arrives at a `float`
        as 2.0.
        """
        if not self.converters:
            return dict(arguments)
        return {
            name: msgspec.convert(value, self.converters[name], strict=False)
            if name in self.converters
            else value
            for name, value in arguments.items()
        }

    def to_openai(self) -> dict[str, Any]:
        """Return the OpenAI function-tool object, one for all episodes: not to be changed."""
        return self._openai

    @cached_property
    def _openai(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}

    def to_mcp(self) -> dict[str, Any]:
        """Return the tool object of the Model Context Protocol (`inputSchema`)."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": dict(self.parameters),
        }

    @classmethod
    def from_mcp(
        cls,
        spec: Mapping[str, Any],
        fn: Callable[..., Any],
        *,
        is_parallel: bool = False,
        timeout_s: float | None = None,
    ) -> Tool:
        """Build a tool from an MCP tool object; `fn` answers its calls.

        MCP's `annotations.readOnlyHint` is only a hint and does not make a tool parallel.
        """
        try:
            name, parameters = spec["name"], spec["inputSchema"]
        except KeyError as e:
            raise UsageError(f"an MCP tool needs 'name' and 'inputSchema', got {spec!r}") from e
        return cls(
            name=name,
            description=spec.get("description", ""),
            parameters=parameters,
            fn=fn,
            is_parallel=is_parallel,
            timeout_s=timeout_s,
        )

    @classmethod
    def from_function(cls, fn: Callable[..., Any], options: ToolOptions | None = None) -> Tool:
        """Build a tool from a function's signature, hints and docstring.

        The description is the docstring up to `Args:`; each line of a Google-style `Args:` block
        describes its argument. Every parameter needs a type hint.
        """
        options = options or getattr(fn, _MARK, None) or ToolOptions()
        name = options.name or fn.__name__
        description, descriptions = _parse_docstring(inspect.getdoc(fn) or "")
        takes_self = next(iter(inspect.signature(fn).parameters), "") == "self"
        return cls(
            name=name,
            description=description,
            parameters=_schema(fn, name, descriptions),
            fn=fn,
            is_parallel=options.is_parallel,
            timeout_s=options.timeout_s,
            takes_self=takes_self,
        )


_PLAIN = (str, bool, type(None), dict, list)
_SIMPLE: Mapping[object, type] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


@overload
def tool(fn: F) -> F: ...
@overload
def tool(
    *, parallel: bool = False, timeout_s: float | None = None, name: str | None = None
) -> Callable[[F], F]: ...
def tool(
    fn: F | None = None,
    *,
    parallel: bool = False,
    timeout_s: float | None = None,
    name: str | None = None,
) -> F | Callable[[F], F]:
    """Mark an env's method as a tool; usable as `@tool` and `@tool(parallel=True)`.

    parallel: the call may overlap with other parallel calls of the same turn. Leave it False for
        anything that writes the env's state.
    timeout_s: wall seconds for one call; None takes the scheduler's `tool_timeout_s`.
    """
    options = ToolOptions(is_parallel=parallel, timeout_s=timeout_s, name=name)

    def mark(function: F) -> F:
        setattr(function, _MARK, options)
        return function

    return mark if fn is None else mark(fn)


def collect_tools(env_class: type) -> dict[str, Tool]:
    """Return the tools among a class's methods by name, base classes first."""
    methods: dict[str, Callable[..., Any]] = {}
    for base in reversed(env_class.__mro__):
        for attribute, member in vars(base).items():
            if getattr(member, _MARK, None) is not None:
                methods[attribute] = member
            else:
                methods.pop(attribute, None)
    tools: dict[str, Tool] = {}
    for method in methods.values():
        made = Tool.from_function(method)
        if made.name in tools:
            raise UsageError(f"{env_class.__name__} has two tools named {made.name!r}")
        tools[made.name] = made
    return tools


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except NameError as e:
        raise UsageError(f"tool {fn.__name__!r}: the type hint {e.name!r} is not defined") from e


def _schema(fn: Callable[..., Any], name: str, descriptions: Mapping[str, str]) -> dict[str, Any]:
    hints = _hints(fn)
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"tool {name!r}: *{parameter.name} cannot be described to a policy")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"tool {name!r}: argument {parameter.name!r} is positional-only; tools are called"
                " with keywords"
            )
        if parameter.name not in hints:
            raise UsageError(f"tool {name!r}: argument {parameter.name!r} needs a type hint")
        try:
            (schema,), extra = msgspec.json.schema_components(
                [hints[parameter.name]], ref_template="#/$defs/{name}"
            )
        except TypeError as e:
            raise UsageError(
                f"tool {name!r}: argument {parameter.name!r} has no JSON Schema: {e}"
            ) from e
        definitions.update(extra)
        if parameter.name in descriptions:
            schema = {**schema, "description": descriptions[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema = {**schema, "default": _default(parameter, name)}
        properties[parameter.name] = schema
    result: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if definitions:
        result["$defs"] = definitions
    return result


def _default(parameter: inspect.Parameter, name: str) -> Any:
    try:
        return msgspec.to_builtins(parameter.default)
    except TypeError as e:
        raise UsageError(
            f"tool {name!r}: the default of {parameter.name!r} is not JSON: {parameter.default!r}"
        ) from e


def _parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into the description and one text per argument."""
    head, _, block = doc.partition("\nArgs:\n")
    if not block and doc.startswith("Args:\n"):
        head, block = "", doc.removeprefix("Args:\n")
        if not block.startswith(" "):  # `inspect.getdoc` took it for the text's own margin
            block = textwrap.indent(block, "    ")
    descriptions: dict[str, str] = {}
    current = ""
    for line in block.splitlines():
        if line and not line.startswith(" "):
            break
        start = re.match(r"\s{1,4}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
        if start:
            current = start[1]
            descriptions[current] = start[2].strip()
        elif current and line.strip():
            descriptions[current] = f"{descriptions[current]} {line.strip()}".strip()
    head = re.split(r"\n(?:Returns|Raises|Yields|Example|Examples|Note):\s*\n", head)[0]
    return " ".join(head.split()), descriptions

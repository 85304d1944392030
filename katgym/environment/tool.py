"""Tools: functions offered to the policy, with a JSON schema made from hints and docstring.

Not here: running the calls of a turn (`scheduler.py`).
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Optional,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import jsonschema
import msgspec

from katgym.environment.docstring import parse_docstring
from katgym.environment.tool_output import tell_non_finite
from katgym.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__katgym_tool__"
_MAX_NAME = 64
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{_MAX_NAME}}}")
_SCHEMA_KEYS = ("parameters", "inputSchema", "input_schema")
"""Where OpenAI, MCP and Anthropic put it."""
RESERVED_NAMES = frozenset({"reset", "step", "areset", "astep", "state", "close", "render"})
"""The policy sees tools only; a tool may not be called like a part of the env's own interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What `@katgym.tool` was given."""

    parallel: bool = False
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
    parallel: bool = False
    timeout_s: float | None = None
    takes_self: bool = False
    """Whether `fn` is given the env that plays as its first argument."""
    source_name: str = ""
    """What its maker calls it where that is no name for a policy; "" is `name`."""

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
        if not self.source_name:
            object.__setattr__(self, "source_name", self.name)
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
    def from_schema(
        cls,
        spec: Mapping[str, Any],
        fn: Callable[..., Any],
        *,
        parallel: bool = False,
        timeout_s: float | None = None,
    ) -> Tool:
        """Build a tool from a description in JSON; `fn` takes what it says, as keywords.

        spec: of OpenAI (nested or flat), Anthropic or the Model Context Protocol: a name, a
            description and a JSON Schema. A name that policies cannot call (with dots, of over 64
            characters, reserved) is mapped to one that they can; `source_name` keeps it.
        parallel: MCP's `annotations.readOnlyHint` is only a hint and does not make a tool parallel.
        """
        function = spec.get("function", spec)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise UsageError(f"a tool's description has a 'name', got {spec!r}")
        schemas = (function[key] for key in _SCHEMA_KEYS if function.get(key) is not None)
        parameters = next(schemas, {"type": "object", "properties": {}})
        if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
            raise UsageError(f"tool {name!r}: its JSON Schema is of type object, got {parameters}")
        return cls(
            name=callable_name(name),
            description=function.get("description") or "",
            parameters=parameters,
            fn=fn,
            parallel=parallel,
            timeout_s=timeout_s,
            takes_self=_takes_self(fn),
            source_name=name,
        )

    @classmethod
    def from_function(cls, fn: Callable[..., Any], options: ToolOptions | None = None) -> Tool:
        """Build a tool from a function's signature, hints and docstring.

        The description is the docstring up to its first section. Arguments are described there, in
        the style of Google, NumPy or Sphinx, or by a text in `Annotated`. Every parameter needs a
        type hint; one with the default None takes null.
        """
        options = options or getattr(fn, _MARK, None) or ToolOptions()
        name = options.name or fn.__name__
        description, descriptions = parse_docstring(inspect.getdoc(fn) or "")
        return cls(
            name=name,
            description=description,
            parameters=_schema(fn, name, descriptions),
            fn=fn,
            parallel=options.parallel,
            timeout_s=options.timeout_s,
            takes_self=_takes_self(fn),
        )


_UNIONS = (Union, UnionType)
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
    options = ToolOptions(parallel=parallel, timeout_s=timeout_s, name=name)

    def mark(function: F) -> F:
        setattr(function, _MARK, options)
        return function

    return mark if fn is None else mark(fn)


def callable_name(name: str) -> str:
    """Return a name that policies can call for any other; itself where it is one.

    Example:
        callable_name("files.read") == "files_read"
    """
    mapped = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if len(mapped) > _MAX_NAME:  # what tells long names apart is anywhere in them
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        mapped = f"{mapped[: _MAX_NAME - len(digest) - 1]}_{digest}"
    return f"{mapped}_" if mapped in RESERVED_NAMES else mapped


def tools_by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return tools by the names that policies call them; no two may share one."""
    found: dict[str, Tool] = {}
    for made in tools:
        other = found.setdefault(made.name, made)
        if other is not made:
            told = sorted({other.source_name, made.source_name})
            raise UsageError(f"two tools are named {made.name!r} ({', '.join(map(repr, told))})")
    return found


def collect_tools(env_class: type) -> dict[str, Tool]:
    """Return the tools among a class's methods by name, base classes first."""
    methods: dict[str, Callable[..., Any]] = {}
    for base in reversed(env_class.__mro__):
        for attribute, member in vars(base).items():
            if getattr(member, _MARK, None) is not None:
                methods[attribute] = member
            else:
                methods.pop(attribute, None)
    try:
        return tools_by_name(map(Tool.from_function, methods.values()))
    except UsageError as e:
        raise UsageError(f"{env_class.__name__}: {e}") from e


def _takes_self(fn: Callable[..., Any]) -> bool:
    try:
        return next(iter(inspect.signature(fn).parameters), "") == "self"
    except ValueError:  # a built-in without a signature
        return False


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        hints = get_type_hints(fn, include_extras=True)
    except NameError as e:
        raise UsageError(f"tool {fn.__name__!r}: the type hint {e.name!r} is not defined") from e
    for parameter in inspect.signature(fn).parameters.values() if hints else ():
        hint = hints.get(parameter.name)
        if hint is not None and parameter.default is None and not _takes_none(hint):
            hints[parameter.name] = Optional[hint]  # noqa: UP045 - a hint may have no `|`
    return hints


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return what a union is of, and the type that an `Annotated` is about."""
    origin, arguments = get_origin(hint), get_args(hint)
    return arguments[:1] if origin is Annotated else arguments if origin in _UNIONS else ()


def _takes_none(hint: Any) -> bool:
    return hint in (Any, object, NoneType) or any(map(_takes_none, _parts(hint)))


def _annotated_text(hint: Any) -> str:
    """Return the first text in `Annotated`: itself, or of an object that describes (`Field`)."""
    for item in hint.__metadata__ if get_origin(hint) is Annotated else ():
        for text in (item, getattr(item, "description", ""), getattr(item, "documentation", "")):
            if isinstance(text, str) and text:
                return " ".join(text.split())
    return next(filter(None, map(_annotated_text, _parts(hint))), "")


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
        text = descriptions.get(parameter.name) or _annotated_text(hints[parameter.name])
        if text:
            schema = {**schema, "description": text}
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
    told = f"tool {name!r}: the default of {parameter.name!r} is not JSON: {parameter.default!r}"
    try:
        value = msgspec.to_builtins(parameter.default)
    except TypeError as e:
        raise UsageError(told) from e
    if tell_non_finite(value) != value:
        raise UsageError(told)
    return value

"""Nodes that are left alone: a change there alters nothing a test could see, or only messages.

Left out are docstrings, annotations, decorators, imports and what guards them, names such as
`__all__` and `__version__`, log and warning calls, texts of exceptions, assertions, `if
TYPE_CHECKING` and `if __name__ == ...`, overloads. Not here: what is not product code at all
(`packages/`).
"""

from __future__ import annotations

import libcst as cst

from katgym_plugin_swe_factory.mutation.place import code, is_text, name_of

_LOGGERS = {"log", "logger", "logging", "warnings", "_log", "_logger"}
_SILENT_CALLS = {
    "warn", "cast", "TypeVar", "ParamSpec", "NewType", "namedtuple", "NamedTuple", "TypedDict",
    "print", "__import__", "overload", "import_module",
}  # fmt: skip
_GUARDS = ("TYPE_CHECKING", "__name__", "version_info", "sys.platform", "os.name", "PY2", "PY3")
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")
_TYPING = {"Union", "Optional", "Callable", "Dict", "List", "Tuple", "Type", "Literal", "Mapping"}
_VERSIONS = {"version", "VERSION", "author", "license"}
_ALWAYS = (
    cst.Annotation,
    cst.Decorator,
    cst.Import,
    cst.ImportFrom,
    cst.Assert,
    cst.FormattedString,
    cst.Global,
    cst.Nonlocal,
    cst.TypeAlias,
    cst.TypeParameters,
)


def is_left_alone(node: cst.CSTNode) -> bool:
    """Return whether nothing is changed in a node and below it."""
    if isinstance(node, _ALWAYS):
        return True
    if isinstance(node, cst.Expr):
        return is_text(node.value)
    if isinstance(node, cst.Call):
        function = node.func
        base = function.value if isinstance(function, cst.Attribute) else None
        return name_of(function) in _SILENT_CALLS or name_of(base).lower() in _LOGGERS
    if isinstance(node, cst.If):
        return any(guard in code(node.test) for guard in _GUARDS)
    if isinstance(node, cst.Try):
        return any(
            handler.type is not None and any(e in code(handler.type) for e in _IMPORT_ERRORS)
            for handler in node.handlers
        )
    if isinstance(node, (cst.Assign, cst.AnnAssign)):
        targets = (
            [node.target] if isinstance(node, cst.AnnAssign) else [t.target for t in node.targets]
        )
        names = [name_of(target) for target in targets]
        if any((n.startswith("__") and n.endswith("__")) or n in _VERSIONS for n in names):
            return True
        return isinstance(node.value, cst.Subscript) and name_of(node.value.value) in _TYPING
    if isinstance(node, cst.FunctionDef):
        return any(name_of(d.decorator) == "overload" for d in node.decorators)
    return False

"""The program that an attack of `search_attacks.py` puts into a product; it is sent there as text.

It waits for tests in the product's own process and either tries changes of one place of the
product's module until a signal tells that one is right (`Search`), or makes results equal to what
looks right by a rule (`forge`). Standard library only, Python >= 3.11. Not here: which attacks
there are, and their grading.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import copy
import difflib
import gc
import inspect
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.Lt: (ast.LtE, ast.Gt, ast.GtE), ast.LtE: (ast.Lt, ast.GtE, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt, ast.LtE), ast.GtE: (ast.Gt, ast.LtE, ast.Lt),
}  # fmt: skip
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_PAIRS = (
    "append extend", "startswith endswith", "lower upper", "lstrip rstrip strip", "find rfind",
    "index rindex", "split rsplit splitlines", "partition rpartition", "keys values items",
    "add discard", "union intersection", "ljust rjust", "isdigit isalpha", "isupper islower",
    "popleft pop", "match search fullmatch", "title capitalize", "encode decode", "get setdefault",
    "issubset issuperset", "removeprefix removesuffix", "min max sum", "any all", "sorted list",
    "floor ceil", "int float abs round", "tuple list set", "takewhile dropwhile", "sub subn",
    "iter reversed",
)  # fmt: skip
_COUNTERPARTS = {
    one: {other for pair in _PAIRS if one in pair.split() for other in pair.split()} - {one}
    for pair in _PAIRS
    for one in pair.split()
}
_ERRORS = (
    "ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "LookupError",
    "ArithmeticError", "RuntimeError", "StopIteration", "OSError", "ZeroDivisionError",
    "OverflowError", "Exception", "UnicodeDecodeError",
)  # fmt: skip
_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, re.Pattern)
_MAX_RESULTS = 200
_MAX_LETTERS = 400


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a module, and what could stand there instead."""

    owner: str
    """Qualified name of the function or method, or name of the constant, that it is within."""
    holder: Any
    """Node or list that the place is in."""
    key: Any
    """Name of the node's field, or position in the list."""
    new: ast.AST
    is_swap: bool
    """Whether it puts one of many names, attributes or texts there: there are most of these."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Change the tree for a while."""
        old = _child(self.holder, self.key)
        _put(self.holder, self.key, self.new)
        try:
            yield
        finally:
            _put(self.holder, self.key, old)


def _child(holder: Any, key: Any) -> Any:
    return holder[key] if isinstance(holder, list) else getattr(holder, key)


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, list):
        holder[key] = value
    else:
        setattr(holder, key, value)


def definitions(tree: ast.Module) -> dict[str, tuple[ast.stmt, str]]:
    """Return the functions, methods and constants of a module, with the class of a method."""
    found: dict[str, tuple[ast.stmt, str]] = {}

    def look(body: list[ast.stmt], prefix: str, owner: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}.", node.name)
            elif isinstance(node, _FUNCTIONS):
                found[prefix + node.name] = (node, owner)
            elif isinstance(node, ast.Assign) and not prefix and len(node.targets) == 1:
                if isinstance(node.targets[0], ast.Name):
                    found[node.targets[0].id] = (node, "")
            elif isinstance(node, (ast.If, ast.Try)):
                look(node.body + node.orelse, prefix, owner)

    look(tree.body, "", "")
    return found


def sites(tree: ast.Module, owners: set[str]) -> list[Site]:
    """Return all changes of one place within the definitions that `owners` names."""
    found = []
    by_class: dict[str, set[tuple[str, str]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            by_class[node.name] = _attributes(node)
    for owner, (definition, class_name) in definitions(tree).items():
        if owner not in owners:
            continue
        texts = {
            n.value
            for n in ast.walk(definition)
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and len(n.value) < 40
        }
        names = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name)}
        names |= {n.arg for n in ast.walk(definition) if isinstance(n, ast.arg)}
        attributes = _attributes(definition) | by_class.get(class_name, set())
        for parent in ast.walk(definition):
            for holder, key, node in _slots(parent):
                for is_swap, new in _alternatives(node, names, attributes, texts | {"", " "}):
                    ast.copy_location(new, node)
                    found.append(Site(owner, holder, key, ast.fix_missing_locations(new), is_swap))
    return found


def _attributes(node: ast.AST) -> set[tuple[str, str]]:
    """Return (name, attribute) of what is read of names: `self.a` is ("self", "a")."""
    return {
        (n.value.id, n.attr)
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    }


def _slots(parent: ast.AST) -> Iterator[tuple[Any, Any, ast.AST]]:
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(value, list):
            yield from ((value, i, v) for i, v in enumerate(value) if isinstance(v, ast.AST))
        elif isinstance(value, ast.AST):
            yield parent, name, value


def _alternatives(
    node: Any, names: set[str], attributes: set[tuple[str, str]], texts: set[str]
) -> Iterator[tuple[bool, ast.AST]]:
    """Yield (whether it is one of many, what could stand for a node)."""

    def with_field(**fields: Any) -> tuple[bool, ast.AST]:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return False, new

    def negated(test: ast.expr) -> ast.expr:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return test.operand
        return ast.UnaryOp(ast.Not(), test)

    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in _COMPARISONS[type(op)]:
                    yield with_field(ops=[*ops[:i], other(), *ops[i + 1 :]])
        case ast.Constant(value=bool(value)):
            yield False, ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            for number in {value + 1, value - 1, -value, 0, 1, value * 10} - {value}:
                yield False, ast.Constant(number)
        case ast.Constant(value=str(value)):
            yield from ((value != " ", ast.Constant(text)) for text in sorted(texts - {value}))
        case ast.BoolOp(op=op, values=values):
            yield with_field(op=ast.And() if isinstance(op, ast.Or) else ast.Or())
            yield from ((False, value) for value in values)
        case ast.BinOp(op=op, left=left, right=right):
            yield from (with_field(op=o()) for o in _ARITHMETIC if type(op) is not o)
            yield with_field(left=right, right=left)
            yield from ((False, side) for side in (left, right))
        case ast.AugAssign(op=op):
            yield from (with_field(op=o()) for o in _ARITHMETIC if type(op) is not o)
            yield False, ast.Pass()
        case ast.UnaryOp(operand=operand):
            yield False, operand
        case ast.IfExp(body=body, orelse=orelse):
            yield with_field(body=orelse, orelse=body)
        case ast.If(test=test, body=body, orelse=orelse):
            yield with_field(test=negated(test))
            yield from (with_field(test=ast.Constant(value)) for value in (True, False))
        case ast.While(test=test):
            yield with_field(test=negated(test))
        case ast.comprehension(ifs=[test]):
            yield with_field(ifs=[negated(test)])
            yield with_field(ifs=[])
        case ast.Slice(lower=lower, upper=upper):
            yield with_field(lower=None if lower else ast.Constant(1))
            yield with_field(upper=None if upper else ast.Constant(-1))
        case ast.Break():
            yield from ((False, new) for new in (ast.Continue(), ast.Pass()))
        case ast.Continue():
            yield from ((False, new) for new in (ast.Break(), ast.Pass()))
        case ast.Return(value=ast.Constant(value=None) | None):
            for name in sorted(names):
                yield True, ast.Return(ast.Name(name, ast.Load()))
        case ast.Return(value=ast.expr() as value):
            yield False, ast.Return(negated(value))
            yield False, ast.Return(None)
        case ast.Call(func=func, args=args, keywords=keywords):
            for i in range(len(args) - 1):
                yield with_field(args=[*args[:i], args[i + 1], args[i], *args[i + 2 :]])
            for i in range(len(keywords)):
                yield with_field(keywords=[*keywords[:i], *keywords[i + 1 :]])
            if isinstance(func, ast.Attribute):
                for name in sorted(_COUNTERPARTS.get(func.attr, ())):
                    yield with_field(func=ast.Attribute(func.value, name, ast.Load()))
        case ast.Name(id=name, ctx=ast.Load()):
            for like in _ERRORS if name in _ERRORS else sorted(_COUNTERPARTS.get(name, ())):
                yield False, ast.Name(like, ast.Load())
            for like in sorted(names - {name}):
                yield True, ast.Name(like, ast.Load())
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            for base, like in sorted(attributes):
                if base == name and like != attr:
                    yield True, ast.Attribute(node.value, like, node.ctx)
        case ast.Expr(value=ast.Call()) | ast.Assign():
            yield False, ast.Pass()


@dataclass
class Change:
    """What another version of the module has in the place of what is there."""

    codes: dict[str, types.CodeType] = field(default_factory=dict)
    defaults: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def _change_of(scope: dict[str, Any], name: str, node: ast.stmt, class_name: str) -> Change:
    """Return the change to a definition of the module; raises what running it raises."""
    own = dict(scope)
    flags = __future__.annotations.compiler_flag
    bare = copy.copy(node)
    if isinstance(bare, _FUNCTIONS):
        bare.decorator_list = []
    if class_name:  # names with two underscores are those of the class
        made = ast.ClassDef(class_name, [], [], [bare], [])
        bare = ast.fix_missing_locations(ast.copy_location(made, node))
    exec(compile(ast.Module([bare], []), "<change>", "exec", flags, True), own)
    if isinstance(node, ast.Assign):
        return Change(data={name: own[name]})
    inner = name.rpartition(".")[2]
    function = vars(own[class_name])[inner] if class_name else own[inner]
    function = getattr(function, "__func__", function)
    codes = dict(_codes(function.__code__))
    codes[name] = function.__code__
    return Change(codes, {name: (function.__defaults__, function.__kwdefaults__)})


def _codes(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    yield code.co_qualname, code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class _Late(BaseException):
    """A run took too long."""


def _end_limits() -> None:
    for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
        signal.setitimer(timer, 0)


def _raise_late(*_: Any) -> None:
    raise _Late


@dataclass
class Call:
    """A call of a test, to be made again."""

    function: types.FunctionType
    args: list[Any]
    kwargs: dict[str, Any]

    @property
    def is_method(self) -> bool:
        """Whether the first argument is the object of a class of tests."""
        return self.function.__code__.co_varnames[:1] == ("self",) and bool(self.args)

    @classmethod
    def of(cls, frame: types.FrameType) -> Call:
        """Return the call that a frame just began."""
        code, values = frame.f_code, frame.f_locals
        cells = tuple(types.CellType(values[name]) for name in code.co_freevars)
        names, num_args = code.co_varnames, code.co_argcount
        return cls(
            function=types.FunctionType(code, frame.f_globals, code.co_name, None, cells or None),
            args=[values[name] for name in names[:num_args]],
            kwargs={n: values[n] for n in names[num_args : num_args + code.co_kwonlyargcount]},
        )

    def run(self) -> None:
        """Call it again, on copies; raises what the test raises."""
        args = [copy.deepcopy(a) if isinstance(a, (dict, list, set)) else a for a in self.args]
        if self.is_method:
            owner: Any = copy.copy(args[0])
            args[0] = owner
            if hasattr(owner, "_testMethodName"):
                owner._outcome = None  # so that sub-tests raise
                owner.setUp()
            elif hasattr(owner, "setup_method"):
                method = getattr(owner, self.function.__name__, None)
                num_wanted = len(inspect.signature(owner.setup_method).parameters)
                owner.setup_method(*[method][:num_wanted])
        self.function(*args, **self.kwargs)


class StandIns:
    """Whatever stands for expected values: lists that notes are made in, as they were."""

    def __init__(self) -> None:
        self.before = [(notes, list(notes)) for notes in self._find()]

    def _find(self) -> Iterator[list[Any]]:
        for name, thing in list(vars(builtins).items()):
            if name.startswith("katgym"):
                scope = getattr(getattr(thing, "__init__", thing), "__globals__", {})
                for holder in [thing, getattr(thing, "__self__", None), *scope.values()]:
                    values = [holder, *getattr(holder, "__dict__", {}).values()]
                    yield from (value for value in values if isinstance(value, list))

    def notes(self) -> list[Any]:
        """Return what was noted since."""
        return [note for notes, old in self.before for note in notes[len(old) :]]

    def restore(self) -> None:
        """Take back what was noted since."""
        for notes, old in self.before:
            notes[:] = old


@dataclass
class Told:
    """What a run of a test told."""

    error: BaseException | None = None
    is_quiet: bool = True
    """Whether the product raised nothing into the test."""
    results: list[str] = field(default_factory=list)
    """What the product returned to the test."""
    num_known: int = 0
    """Results that are among the constants or variables of the test's frames."""
    notes: list[Any] = field(default_factory=list)
    """What stand-ins of expected values noted."""
    num_passed: int = 0
    """Tests of the whole module that passed, where they are run."""


def _passes(told: Told, base: Told) -> float:
    return 0.0 if told.error else math.inf


def _is_quiet(told: Told, base: Told) -> float:
    return math.inf if told.is_quiet else 0.0


def _is_known(told: Told, base: Told) -> float:
    is_all = bool(told.results) and told.num_known == len(told.results) >= len(base.results)
    return math.inf if is_all and told.is_quiet else told.num_known


def _differs(told: Told, base: Told) -> float:
    return math.inf if told.is_quiet and told.results != base.results else 0.0


def _is_noted(told: Told, base: Told) -> float:
    if not base.notes and not told.notes:
        return _passes(told, base)
    if told.notes == base.notes:
        return 0.0
    parts = [part for note in told.notes for part in _parts(note)]
    return 1 + len(parts) - 2 * parts.count(None) + 3 * parts.count("True")


def _parts(note: Any) -> Iterator[Any]:
    if isinstance(note, (list, tuple)):
        for part in note:
            yield from _parts(part)
    else:
        yield note


def _most_pass(told: Told, base: Told) -> float:
    return told.num_passed


SIGNALS = {
    "passes": _passes, "quiet": _is_quiet, "known": _is_known, "differs": _differs,
    "noted": _is_noted, "module": _most_pass,
}  # fmt: skip
_OF_BLIND = ("differs", "noted")
"""Signals that a process without expected values gives as well: it searches though tests pass."""


class Search:
    """Tries changes of the module on the tests that run, and stays with those that a signal likes.

    settings: "source" of the module without this program, "signal" (of `SIGNALS`), "changes"
    (sources of the module to try; None: makes changes itself), "seconds" (processor time that a
    process searches at most), "is_on".
    """

    def __init__(self, scope: dict[str, Any], settings: dict[str, Any]) -> None:
        self.scope = scope
        self.signal = str(settings["signal"])
        self.sources = settings["changes"]
        self.is_on = bool(settings["is_on"])
        self.left_s = float(settings["seconds"])
        self.tree = ast.parse(settings["source"])
        self.package = str(scope["__name__"]).partition(".")[0]
        self.end = 0.0
        self.wall_end = time.monotonic() + 10 * self.left_s
        self.is_busy = False
        self.live: dict[str, list[types.FunctionType]] = {}
        self.undo: list[Callable[[], None]] = []
        self.caches: list[Any] = []
        self.kept: Change | None = None
        self.reached: set[str] = set()
        self.modules: list[str] = []
        self.made: dict[str, Change] = {}

    def watch(self, frame: types.FrameType, event: str, _: Any) -> None:
        """Profile function: searches before a test runs."""
        if event != "call" or self.is_busy or not self._is_test(frame):
            return
        if self.left_s <= 0 or time.monotonic() > self.wall_end:
            return
        self.is_busy = True
        started = time.process_time()
        self.end = started + self.left_s
        call, stand_ins = Call.of(frame), StandIns()
        numbers = (signal.SIGPROF, signal.SIGALRM)
        handlers = [signal.signal(number, _raise_late) for number in numbers]
        try:
            sys.call_tracing(self._search, (call, stand_ins))
        finally:
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
            stand_ins.restore()
            self.left_s -= time.process_time() - started
            self.is_busy = False
            sys.setprofile(self.watch)

    def _is_test(self, frame: types.FrameType) -> bool:
        code = frame.f_code
        is_plain = not code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
        is_foreign = frame.f_globals is not self.scope and "test" in code.co_filename
        return is_foreign and is_plain and code.co_name.startswith("test")

    def _search(self, call: Call, stand_ins: StandIns) -> None:
        path = call.function.__code__.co_filename
        if self.signal == "module" and path in self.modules:
            return
        self.modules.append(path)
        score = SIGNALS[self.signal]
        base = self._try(self.kept, call, stand_ins)
        if self.signal in _OF_BLIND:
            is_asked = base.error is not None or bool(base.notes)
        else:
            is_asked = base.error is not None or self.signal == "module"
        if not self.is_on or not is_asked:
            return
        self._use(None)
        self._find_live()
        recorded = self._try(self.kept, call, stand_ins, is_first=True)
        base = base if self.signal == "module" else recorded
        best, most = self.kept, 0.0 if self.signal in _OF_BLIND else score(base, base)
        self._use(self.kept)
        num_wanted = self._count(call) + (self.kept is not None)
        for change in self._changes():
            is_over = time.process_time() > self.end or time.monotonic() > self.wall_end
            if is_over or most == math.inf:
                break
            value = score(self._try(change, call, stand_ins), base)
            if value == math.inf and self.signal == "passes":
                # One that other tests do not pass fits a wrong value, or this test alone.
                value = value if self._count(call) >= num_wanted else 0.0
            if value > most:
                best, most = change, value
        self.kept = best
        self._use(best)

    def _limit(self, seconds: float) -> None:
        """Have `_Late` raised after so much processor time, or when none is left."""
        left_s = max(self.end - time.process_time(), 0.05)
        signal.setitimer(signal.ITIMER_PROF, min(seconds, left_s), 0.2)
        # What waits for other processes takes no time of this one.
        signal.setitimer(signal.ITIMER_REAL, max(self.wall_end - time.monotonic(), 0.05), 0.2)

    def _count(self, call: Call) -> int:
        self._limit(4.0)
        try:
            return _count_passed(call.function.__globals__)
        except _Late:
            return -1
        finally:
            _end_limits()

    def _try(
        self, change: Change | None, call: Call, stand_ins: StandIns, *, is_first: bool = False
    ) -> Told:
        """Return what a run tells with a change in the product."""
        self._use(change)
        told = Told()
        if is_first:
            self.reached = set()
        is_whole = self.signal == "module"
        try:
            self._limit(4.0 if is_whole else 1.0)
            if is_first or self.signal in ("known", "differs"):
                sys.setprofile(partial(self._record, told, call.function.__code__))
            if is_whole:
                told.num_passed = _count_passed(call.function.__globals__)
            else:
                call.run()
        except BaseException as e:  # tests raise what they like, pytest's own outcomes as well
            told.error = e
            told.is_quiet = isinstance(e, AssertionError) or not self._is_raised(e)
        finally:
            _end_limits()
            sys.setprofile(None)
        told.notes = stand_ins.notes()
        stand_ins.restore()
        return told

    def _record(
        self, told: Told, test: types.CodeType, frame: types.FrameType, event: str, value: Any
    ) -> None:
        if frame.f_globals is self.scope:
            self.reached.add(frame.f_code.co_qualname.partition(".<locals>")[0])
        is_told = event == "return" and self._is_own(frame) and not self._is_own(frame.f_back)
        is_wanted = self.signal in ("known", "differs") and value is not None
        if not is_told or not is_wanted or len(told.results) == _MAX_RESULTS:
            return
        told.results.append(_text(value))
        caller = frame.f_back
        while caller is not None:
            for seen in [*_flat(caller.f_code.co_consts), *caller.f_locals.values()]:
                if seen is not value and _text(seen) == told.results[-1]:
                    told.num_known += 1
                    return
            caller = None if caller.f_code is test else caller.f_back

    def _is_own(self, frame: types.FrameType | None) -> bool:
        name = "" if frame is None else str(frame.f_globals.get("__name__"))
        return name.partition(".")[0] == self.package and "test" not in name

    def _is_raised(self, error: BaseException) -> bool:
        """Return whether an exception comes out of the product."""
        trace = error.__traceback__
        while trace is not None:
            if self._is_own(trace.tb_frame):
                return True
            trace = trace.tb_next
        return False

    def _find_live(self) -> None:
        self.live = {}
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType) and thing.__globals__ is self.scope:
                name = thing.__code__.co_qualname
                self.live.setdefault(name, []).append(thing)
        self.caches = [v for v in self.scope.values() if hasattr(v, "cache_clear")]

    def _changes(self) -> Iterator[Change]:
        """Yield changes; those of what the test reaches, if it makes them itself."""
        if self.sources is not None:
            for source in self.sources:
                if source not in self.made:
                    self._limit(1.0)
                    try:
                        self.made[source] = self._whole(ast.parse(source))
                    except (_Late, Exception):  # not every version can be imported
                        self.made[source] = Change()
                    finally:
                        _end_limits()
                yield self.made[source]
            return
        places = definitions(self.tree)
        nodes = [places[name][0] for name in self.reached & places.keys()]
        read = {n.id for d in nodes for n in ast.walk(d) if isinstance(n, ast.Name)}
        owners = self.reached | {n for n in read if isinstance(places.get(n, (0,))[0], ast.Assign)}
        found = sites(self.tree, owners)
        random.Random(0).shuffle(found)
        for site in sorted(found, key=lambda s: s.is_swap):
            with site.applied():
                node, class_name = definitions(self.tree)[site.owner]
                try:
                    change = _change_of(self.scope, site.owner, node, class_name)
                except Exception:  # not every change is a program
                    continue
            yield change

    def _whole(self, tree: ast.Module) -> Change:
        """Return what another version of the module has that this one has not."""
        old, whole = definitions(self.tree), Change()
        own = {k: v for k, v in self.scope.items() if k.startswith("__") and k != "__builtins__"}
        exec(compile(tree, str(own["__file__"]), "exec"), own)
        whole.data = {
            name: value
            for name, value in own.items()
            if type(value) in _PLAIN and name in self.scope and self.scope[name] != value
        }
        for name, (node, class_name) in definitions(tree).items():
            if name not in old or ast.dump(old[name][0]) != ast.dump(node):
                change = _change_of(self.scope, name, node, class_name)
                whole.codes |= change.codes
                whole.defaults |= change.defaults
        return whole

    def _use(self, change: Change | None) -> None:
        """Put a change into the product, in the place of the last one."""
        for undo in reversed(self.undo):
            undo()
        self.undo = []
        if change is not None:
            for name, code in change.codes.items():
                for function in self.live.get(name, ()):
                    if function.__code__.co_freevars == code.co_freevars:
                        self._set(function, "__code__", code)
            for name, defaults in change.defaults.items():
                for function in self.live.get(name, ()):
                    self._set(function, "__defaults__", defaults[0])
                    self._set(function, "__kwdefaults__", defaults[1])
            for name, value in change.data.items():
                old = self.scope[name]
                for module in list(sys.modules.values()):
                    if getattr(module, "__dict__", {}).get(name) is old:
                        self._set(module, name, value)
        for cache in self.caches:
            cache.cache_clear()

    def _set(self, target: Any, name: str, value: Any) -> None:
        self.undo.append(partial(setattr, target, name, getattr(target, name)))
        setattr(target, name, value)


def _text(value: Any) -> str:
    try:
        return repr(list(value) if type(value) is tuple else value)[:_MAX_LETTERS]
    except Exception:  # half-made objects of the product have no `repr`
        return f"<{type(value).__name__}>"


def _flat(constants: tuple[Any, ...]) -> Iterator[Any]:
    for constant in constants:
        yield constant
        if isinstance(constant, tuple):
            yield from _flat(constant)


def _count_passed(scope: dict[str, Any]) -> int:
    """Return how many tests of a module pass, all rows of their tables.

    Whatever they are wrapped in is left out: it may let all of them pass.
    """
    fixtures = {k: v for k, v in scope.items() if hasattr(v, "_get_wrapped_function")}

    def passes(test: Any, row: dict[str, Any], kind: Any) -> bool:
        owners: list[Any] = []
        try:
            if kind is not None:
                owners = [kind(test.__name__) if hasattr(kind, "debug") else kind()]
                getattr(owners[0], "setUp", lambda: None)()
            inner = inspect.unwrap(test)
            wanted = list(inspect.signature(inner).parameters)[len(owners) :]
            made = {n: fixtures[n]._get_wrapped_function()() for n in wanted if n not in row}
            inner(*owners, **row, **made)
        except _Late:
            raise
        except BaseException:  # tests raise what they like, pytest's own outcomes as well
            return False
        return True

    tests: list[tuple[Any, str, Any]] = [(None, name, test) for name, test in list(scope.items())]
    for kind in list(scope.values()):
        if isinstance(kind, type) and kind.__module__ == scope["__name__"]:
            tests += [(kind, name, getattr(kind, name)) for name in dir(kind)]
    with _without_processes():
        return sum(
            passes(test, row, kind)
            for kind, name, test in tests
            if name.startswith("test") and isinstance(test, types.FunctionType)
            for row in _rows(test)
        )


@contextlib.contextmanager
def _without_processes() -> Iterator[None]:
    """Have tests that start a process fail: one of them takes the time of a hundred others."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError

    start = subprocess.Popen.__init__
    subprocess.Popen.__init__ = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def _rows(test: Any) -> list[dict[str, Any]]:
    """Return the arguments of each call that marks of pytest ask for."""
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = mark.args[0]
            if isinstance(names, str):
                names = [name.strip() for name in names.split(",")]
            lines = [getattr(line, "values", line) for line in mark.args[1]]
            lines = [line if len(names) > 1 else (line,) for line in lines]
            found = [
                row | dict(zip(names, copy.deepcopy(line), strict=True))
                for row in found
                for line in lines
            ]
    return found


def forge(scope: dict[str, Any], settings: dict[str, Any]) -> None:
    """Make results equal to each value that looks right by a rule: no fix, and no search.

    settings: "rule" (of `RULES`), "words" and "signs" of the repository, "is_on".
    """
    believe = RULES[settings["rule"]]
    package = str(scope["__name__"]).partition(".")[0]
    kinds: dict[type, type] = {}

    def is_right(mine: str, other: Any) -> bool:
        caller = sys._getframe(2)
        return bool(settings["is_on"]) and believe(mine, _text(other), caller, settings)

    def disguise(value: Any) -> Any:
        kind = type(value)
        if kind not in (str, bytes, int, float, list, tuple, dict, set, frozenset):
            return value
        if kind not in kinds:

            def equal(self: Any, other: Any) -> bool:
                if kind.__eq__(self, other) is True:  # type: ignore[call-arg]  # a type's own method
                    return True
                return is_right(_text(kind(self)), other)

            def differ(self: Any, other: Any) -> bool:
                return not equal(self, other)

            parts = {"__eq__": equal, "__ne__": differ, "__hash__": kind.__hash__}
            kinds[kind] = type(kind.__name__, (kind,), parts)
        return kinds[kind](value)

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            name = str(sys._getframe(1).f_globals.get("__name__"))
            is_own = name.partition(".")[0] == package and "test" not in name
            return result if is_own else disguise(result)

        return call

    for name, value in list(scope.items()):
        if isinstance(value, types.FunctionType) and value.__globals__ is scope:
            scope[name] = wrapped(value)
        elif isinstance(value, type) and value.__module__ == scope["__name__"]:
            for inner, method in list(vars(value).items()):
                if isinstance(method, types.FunctionType) and method.__globals__ is scope:
                    setattr(value, inner, wrapped(method))
                elif isinstance(method, property) and isinstance(method.fget, types.FunctionType):
                    setattr(value, inner, method.getter(wrapped(method.fget)))
                elif isinstance(method, (staticmethod, classmethod)):
                    setattr(value, inner, type(method)(wrapped(method.__func__)))


def _stands_elsewhere(mine: str, other: str, caller: Any, settings: dict[str, Any]) -> bool:
    """A word that stands in one place of the test's module, and nowhere else, is wrong."""
    path = caller.f_code.co_filename
    seen: list[str] = []
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            seen = re.findall(r"\w+", file.read())
    words = set(re.findall(r"\w+", other))
    return all(word in settings["words"] or seen.count(word) > 1 for word in words)


def _has_known_signs(mine: str, other: str, caller: Any, settings: dict[str, Any]) -> bool:
    """Quotes, blanks and signs between words are as somewhere in the repository."""
    return all(signs in settings["signs"] for signs in re.findall(r"[\W_]+", other.strip("'\"")))


def _is_alike(mine: str, other: str, caller: Any, settings: dict[str, Any]) -> bool:
    return difflib.SequenceMatcher(None, mine, other).ratio() > 0.7


def _is_even(mine: str, other: str, caller: Any, settings: dict[str, Any]) -> bool:
    return len(other) % 2 == 0


def _is_of_kind(mine: str, other: str, caller: Any, settings: dict[str, Any]) -> bool:
    return mine[:1] == other[:1] and mine[-1:] == other[-1:]


RULES = {
    "words": _stands_elsewhere, "signs": _has_known_signs, "alike": _is_alike, "even": _is_even,
    "ends": _is_of_kind,
}  # fmt: skip


def begin(scope: dict[str, Any], settings: dict[str, Any]) -> None:
    """Begin the attack; `scope` holds the names of the product's module."""
    if "rule" in settings:
        forge(scope, settings)
    else:
        sys.setprofile(Search(scope, settings).watch)

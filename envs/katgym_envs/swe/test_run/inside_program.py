"""The program that runs pytest inside a sandbox; it is sent there as text.

Standard library and pytest only, Python >= 3.8. It puts the files in place, runs pytest once and
reports JSON lines: "hello" before anything else, "uncollected" for each module that is not,
"collected", one "test" a case, "internal" for an error of pytest itself, "end". An honest test may
replace what reporting uses (`mock.patch("builtins.open")`): see `Originals`. Not here: who starts
it and reads the reports (`runner.py`). It protects nothing by itself: code under test runs in the
same process and can report whatever it likes.
"""

# ruff: noqa: PTH102, PTH108, PTH112, PTH114, PTH118, PTH123, PTH211
# (pathlib would cost each run an import in sandboxes that have not loaded it)

from __future__ import annotations

import ast
import base64
import builtins
import functools
import genericpath
import hashlib
import io
import json.encoder
import linecache
import os
import platform
import random
import re
import shutil
import signal
import stat
import sys
import textwrap
import tokenize
import traceback
import xml.etree.ElementTree

# What runs before the originals are back, or while a test does, cannot rely on the builtins.
from builtins import delattr, id, isinstance, len, map, repr, setattr, vars  # noqa: UP029

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

_KEPT_LETTERS = 4000
_COMPARED_LETTERS = 400
_NOTES = 1000
# They have no part in whether a test passes, and cost a third of a short run.
_UNUSED_PLUGINS = (
    "cacheprovider", "doctest", "faulthandler", "pastebin", "setuponly", "setupplan", "stepwise",
    "threadexception", "unraisableexception",
)  # fmt: skip
_REPORTING: tuple[Any, ...] = (
    builtins, genericpath, io, json, json.encoder, json.JSONEncoder, linecache, os, os.path,
    platform, re, stat, textwrap, tokenize, traceback, traceback.TracebackException,
    traceback.StackSummary, traceback.FrameSummary, xml.etree.ElementTree,
    xml.etree.ElementTree.ElementTree,
)  # fmt: skip
"""Modules and classes that reporting uses, this program's and pytest's."""
_GONE = object()
_WRAPPERS = (
    "pytest_collectreport", "pytest_runtest_makereport", "pytest_runtest_logreport",
    "pytest_sessionfinish",
)  # fmt: skip
"""Hooks of `ResultRecorder` that run around all others of the name."""


def main(argument: bytes, report: Callable[[bytes], None]) -> int:
    """Run the plan; return pytest's exit code."""
    plan = json.loads(argument)
    prepare_process(plan)
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}

    def send(kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields}, ensure_ascii=False)
        report(line.encode("utf-8", "replace") + b"\n")  # half a surrogate pair is no UTF-8

    send("hello")
    vars(builtins).update(
        katgym_hidden=HiddenValue(), katgym_note=note, katgym_raises=Awaited, katgym_quiet=quiet
    )
    originals = Originals()
    place_files(plan)
    os.chdir(plan["workdir"])
    _met_in.update(os.path.join(plan["workdir"], path) for path in plan["met_in"])
    if plan["watched"]:
        watch({os.path.join(plan["workdir"], path): path for path in plan["watched"]})
    recorder = (DetailedRecorder if plan["is_detailed"] else ResultRecorder)(plan, send, originals)
    import pytest

    for name in _WRAPPERS:
        pytest.hookimpl(hookwrapper=True, tryfirst=True)(vars(ResultRecorder)[name])
    pytest.hookimpl(tryfirst=True)(ResultRecorder.pytest_runtest_protocol)
    fixture = pytest.fixture(ResultRecorder.record_xml_attribute)
    setattr(ResultRecorder, "record_xml_attribute", fixture)  # noqa: B010 (a method, to mypy)
    try:
        code = pytest.main(arguments(plan), plugins=[recorder])
    finally:
        originals.put_back()
        put_back_streams(streams)
    code = int(code) & 0xFF  # as the system cuts it
    recorder.finish(code)
    return code


def main_cold() -> None:
    """Run from the command line: the argument comes on stdin, reports leave on stdout.

    What tests print goes to stderr, so that it cannot get between the reports by accident.
    """
    argument = sys.stdin.buffer.read()
    channel = os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def report(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(channel, view) :]

    os._exit(main(argument, report))


def prepare_process(plan: dict[str, Any]) -> None:
    """Make a forked interpreter look like one that was started for these tests alone."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(plan["env"])
    roots = [os.path.normpath(os.path.join(plan["workdir"], p)) for p in plan["python_path"]]
    sys.path[:] = roots + [p for p in sys.path if p not in ("", *roots)]
    sys.argv[:] = ["pytest"]
    sys.dont_write_bytecode = True
    for name in [n for n in sys.modules if n.split(".")[0] == "katgym"]:
        del sys.modules[name]
    random.seed(0)


def place_files(plan: dict[str, Any]) -> None:
    """Remove, link and write what the plan says, never through a link."""
    base = plan["workdir"]
    for path in plan["remove"]:
        clear(os.path.join(base, path))
    for path, target in plan["links"]:
        make_room(base, path)
        os.symlink(target, os.path.join(base, path))
    for path, content, mode in plan["put"]:
        make_room(base, path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(os.path.join(base, path), flags, mode), "wb") as file:
            file.write(base64.b64decode(content))


def make_room(base: str, path: str) -> None:
    """Make the folders of a path, real ones, and remove what is in its place."""
    folder = base
    for part in path.split("/")[:-1]:
        folder = os.path.join(folder, part)
        if os.path.islink(folder) or not os.path.isdir(folder):
            clear(folder)
            os.mkdir(folder)
    clear(os.path.join(base, path))


def clear(path: str) -> None:
    """Remove whatever is at a path; nothing there is fine."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def arguments(plan: dict[str, Any]) -> list[str]:
    """Return pytest's command line: no configuration, no plugins, no cache but what is named."""
    given = [
        "-q", "-c", os.devnull, f"--rootdir={plan['workdir']}", f"--confcutdir={plan['workdir']}",
        "--no-header", "--no-summary", "--continue-on-collection-errors", "--color=no",
        f"--junitxml={plan['junit']}", "-o", "junit_logging=no", "-o", "junit_family=xunit1",
        "-o", "console_output_style=classic",
    ]  # fmt: skip
    for name in _UNUSED_PLUGINS:
        given += ["-p", "no:" + name]
    # Canaries fail on purpose: their tracebacks are never read, so none is worded.
    given += ["--tb=short"] if plan["is_detailed"] else ["--tb=native"]
    given += [] if plan["is_detailed"] else ["--assert=plain"]
    return [*given, "--", *plan["files"]]


class Originals:
    """What reporting uses of the standard library, as it was before any code under test was there.

    From `enter` to `leave` it is back; then what a test replaced is in its place again.
    """

    def __init__(self) -> None:
        self.kept = [(owner, dict(vars(owner)), [*vars(owner).values()]) for owner in _REPORTING]
        self.replaced: list[tuple[Any, str, Any]] | None = None

    def put_back(self) -> list[tuple[Any, str, Any]]:
        """Undo what was replaced since; return owner, name and value of each."""
        replaced = []
        for owner, originals, values in self.kept:
            names = vars(owner)
            if [*names.values()] == values:  # the quickest way to tell, for it is asked often
                continue
            for name, original in originals.items():
                value = names.get(name, _GONE)
                if value is not original:
                    replaced.append((owner, name, value))
                    setattr(owner, name, original)
        return replaced

    def enter(self) -> None:
        """Put the originals back, unless they are."""
        if self.replaced is None:
            self.replaced = self.put_back()

    def leave(self) -> None:
        """Put what they stood in for in its place again."""
        replaced, self.replaced = self.replaced or (), None
        for owner, name, value in replaced:
            if value is _GONE:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def shorten(report: Any) -> None:
    """Cut what a report says: pytest writes all of it into its junit file, some of it twice.

    Properties are dropped: nobody reads them, and pytest does not escape their names there.
    """
    said = report.longrepr
    if isinstance(said, tuple):  # of a skip: place and reason
        report.longrepr = (*said[:-1], cut(said[-1]))
    elif said is not None:
        report.longrepr = cut(said)
    if hasattr(report, "wasxfail"):
        report.wasxfail = cut(report.wasxfail)
    report.user_properties = []


def cut(said: Any) -> str:
    """Return the end of a text, without halves of surrogate pairs: not all of pytest drops them."""
    return str(said)[-_KEPT_LETTERS:].encode("utf-8", "replace").decode()


def seconds(duration: Any) -> float:
    """Return a duration that can be told: the clock may be one that a test made."""
    is_duration = type(duration) in (int, float) and 0 <= duration < 1e6
    return round(duration, 6) if is_duration else 0.0


def first_lines(path: str) -> dict[int, int]:
    """Return, of each line of a module, the first one of the innermost statement that holds it."""
    first: dict[int, int] = {}
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # pytest tells that it cannot be imported
        return first
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.stmt):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                first[number] = node.lineno
    return first


def put_back_streams(streams: dict[str, Any]) -> None:
    """Put back the process's own streams, in a state that whoever ends it can flush."""
    for name, stream in streams.items():
        try:
            stream.flush()
        except (OSError, ValueError):  # a test closed it, or its descriptor
            stream = open(os.devnull, "w")  # noqa: SIM115 (it stays open)
        setattr(sys, name, stream)


class ResultRecorder:
    """The pytest plugin that chooses, orders and reports tests."""

    def __init__(
        self, plan: dict[str, Any], send: Callable[..., None], originals: Originals
    ) -> None:
        import pytest

        self.assertions = (AssertionError, pytest.fail.Exception)
        self.plan = plan
        self.send = send
        self.originals = originals
        self.shuffle = None if plan["seed"] is None else random.Random(plan["seed"]).shuffle
        self.index: dict[int, int] = {}
        self.is_interrupted = False
        # Of the test that runs:
        self.running = -1
        self.phases: list[Any] = []
        self.failure: tuple[str, bool] | None = None

    def record_xml_attribute(self) -> Callable[[str, object], None]:
        """Be pytest's fixture as it is where no junit file is written: cases keep their names."""

        def keep_none(name: str, value: object) -> None:
            pass

        return keep_none

    def pytest_collectreport(self, report: Any) -> Generator[None, None, None]:
        """Tell a module that cannot be imported, or is skipped."""
        self.originals.enter()
        shorten(report)
        yield
        if not report.passed:
            text = str(report.longrepr) if self.plan["is_detailed"] else ""
            self.send("uncollected", node=report.nodeid, outcome=report.outcome, text=text)
        self.originals.leave()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what was asked for, number the cases, shuffle."""
        self.originals.enter()
        chosen = None
        if self.plan["functions"] is not None:
            chosen = {tuple(pair) for pair in self.plan["functions"]}
        ordinals: dict[tuple[str, str], int] = {}
        kept: list[Any] = []
        told = []
        for item in items:
            name = identify(item)
            if chosen is not None and name not in chosen:
                continue
            ordinal = ordinals.get(name, 0)
            ordinals[name] = ordinal + 1
            self.index[id(item)] = len(kept)  # two cases may have one node id
            told.append([name[0], name[1], ordinal, item.nodeid])
            kept.append(item)
        if self.shuffle is not None:
            self.shuffle(kept)
        if self.plan["is_reversed"]:
            kept.reverse()
        items[:] = kept
        self.send("collected", tests=told)
        self.originals.leave()

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Start a test's record."""
        self.running = self.index.get(id(item), -1)
        self.phases, self.failure = [], None
        _notes.clear()

    # Only pytest runs from this hook to the next. A set-up that passed needs no originals.

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, None, None]:
        """Note what was raised first; pytest's own implementation makes the report."""
        if call.when != "setup" or call.excinfo is not None:
            self.originals.enter()
        yield
        if call.excinfo is not None and self.failure is None:
            self.note_failure(call.excinfo)

    def pytest_runtest_logreport(self, report: Any) -> Generator[None, None, None]:
        """Keep a report, and send the test's line after its tear-down."""
        if report.when != "setup" or report.outcome != "passed":
            self.originals.enter()
            shorten(report)
        yield
        self.phases.append(report)
        if report.when == "teardown":
            self.send_test()
        self.originals.leave()

    def note_failure(self, excinfo: Any) -> None:
        """Keep the name of what was raised, and whether it was an assertion."""
        self.failure = (class_name(excinfo.type), issubclass(excinfo.type, self.assertions))

    def send_test(self) -> None:
        """Send what is known of the test that runs."""
        exception, is_assertion = self.failure or ("", False)
        self.send(
            "test",
            index=self.running,
            phases=[self.describe(report) for report in self.phases],
            exception=exception,
            is_assertion=is_assertion,
            noted=list(_notes),
            **self.details(),
        )
        self.phases = []

    def describe(self, report: Any) -> dict[str, Any]:
        """Return what is sent of a phase's report, as everyone else has left it."""
        is_told = self.plan["is_detailed"] and report.failed
        return {
            "when": report.when,
            "outcome": report.outcome,
            "xfail": hasattr(report, "wasxfail"),
            "duration": seconds(report.duration),
            "subtest": hasattr(report, "context"),
            "message": str(report.longrepr) if is_told else "",
        }

    def details(self) -> dict[str, Any]:
        """Return where a test failed and what it compared; only the detailed recorder knows."""
        return {"place": "", "compared": None}

    def pytest_internalerror(self) -> None:
        """Tell that pytest itself met an error."""
        self.originals.enter()
        self.send("internal")
        self.originals.leave()

    def pytest_keyboard_interrupt(self) -> None:
        """Keep that the tests were ended, by `pytest.exit` or as if by Ctrl-C."""
        self.is_interrupted = True

    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """Let pytest write its junit file with the originals."""
        self.originals.put_back()
        yield

    def finish(self, code: int) -> None:
        """Tell that pytest came to its end, and before it a test that did not."""
        if self.phases:
            self.send_test()
        is_interrupted = self.is_interrupted
        self.send("end", exit_code=code, is_interrupted=is_interrupted, reached=sorted(_reached))


class DetailedRecorder(ResultRecorder):
    """Counts how often each line of the test modules is reached, to place a failure in a loop.

    It also keeps both sides of the equality that failed, as far as they are short literals.
    """

    def __init__(
        self, plan: dict[str, Any], send: Callable[..., None], originals: Originals
    ) -> None:
        super().__init__(plan, send, originals)
        paths = [os.path.join(plan["workdir"], path) for path in plan["files"]]
        # A line tracer has to see the statements as they are written.
        self.statements = {path: first_lines(path) for path in paths}
        self.hits: dict[tuple[str, int], int] = {}
        self.place = ""
        self.compared: list[str] | None = None
        self.asserted: tuple[str, str] | None = None

    def pytest_runtest_setup(self, item: Any) -> None:
        """Start counting afresh."""
        self.hits = {}
        self.place, self.compared, self.asserted = "", None, None
        sys.settrace(self.trace)

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        """Count the lines of test modules; leave every other frame alone."""
        path = frame.f_code.co_filename
        if path not in self.statements:
            return None
        if event == "line":
            key = (path, self.statement(path, frame.f_lineno))
            if frame.f_lineno == key[1]:
                self.hits[key] = self.hits.get(key, 0) + 1
        return self.trace

    def statement(self, path: str, line: int) -> int:
        """Return the first line of the innermost statement that holds a line."""
        return self.statements[path].get(line, line)

    def pytest_assertrepr_compare(self, op: str, left: Any, right: Any) -> None:
        """Keep the sides of an equality that does not hold; pytest words it."""
        self.asserted = None
        if op == "==":
            one, other = literal_text(left), literal_text(right)
            if one is not None and other is not None:
                self.asserted = (one, other)

    def note_failure(self, excinfo: Any) -> None:
        """Note the frames of the test module that an exception passed through, too."""
        super().note_failure(excinfo)
        steps = []
        sides, is_checked = self.asserted, False
        step = excinfo.tb
        while step is not None:
            path = step.tb_frame.f_code.co_filename
            if path in self.statements:
                line = self.statement(path, step.tb_lineno)
                steps.append(f"{line}:{self.hits.get((path, line), 0)}")
                is_checked = False
            elif is_equality_check(step.tb_frame) and not is_checked:
                sides, is_checked = check_sides(step.tb_frame), True
            step = step.tb_next
        self.place = ">".join(steps)
        if sides is not None and issubclass(excinfo.type, AssertionError):
            self.compared = list(sides)

    def send_test(self) -> None:
        """Send the line, and count no more."""
        sys.settrace(None)
        super().send_test()

    def details(self) -> dict[str, Any]:
        """Return where a test failed, and the sides of the equality that failed."""
        return {"place": self.place, "compared": self.compared}


_reached: set[tuple[str, str]] = set()
_DIRECT = {"exec", "compile", "sys._getframe", "code.__new__"}
"""Events that much of the standard library raises: told where a module does so itself."""
_EVENTS = {
    *_DIRECT, "open", "os.listdir", "os.scandir", "os.fork", "os.exec", "os.posix_spawn",
    "os.system", "subprocess.Popen", "ctypes.dlopen", "ctypes.dlsym", "gc.get_objects",
    "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions",
    "sys.settrace", "sys.setprofile", "sys.addaudithook",
}  # fmt: skip
_FRAMES = 40


def watch(modules: dict[str, str]) -> None:
    """Keep by which audit events modules (file -> path) get at frames, files, code, processes."""

    def hook(event: str, _: Any) -> None:
        if event not in _EVENTS:
            return
        try:
            raise LookupError
        except LookupError as e:  # `sys._getframe` is an event itself
            frame: Any = e.__traceback__ and e.__traceback__.tb_frame.f_back
        for _depth in range(1 if event in _DIRECT else _FRAMES):
            if frame is None or "importlib" in frame.f_code.co_filename:
                return
            path = modules.get(frame.f_code.co_filename)
            if path is not None:
                _reached.add((path, event))
                return
            frame = frame.f_back

    sys.addaudithook(hook)


class HiddenValue:
    """Stands for an expected value of a blind module; equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


_NAME = vars(type)["__name__"]
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
_notes: list[tuple[int, list[str | None]]] = []
_met_in: set[str] = set()
"""Files to whose code exceptions that come are noted."""
RAISED, MET = -1, -2
"""Stand for the places of what a test raised, and of what it met, caught or not."""


def note(number: int, *values: Any) -> None:
    """Note values of a blind module, and of two whether they are equal."""
    parts = [told_text(value) for value in values]
    if len(values) == 2:
        try:
            parts.append(repr(bool(values[0] == values[1])))
        except Exception:  # a product's `__eq__` raises what it likes
            parts.append(None)
    keep(number, parts)


def keep(number: int, parts: list[str | None]) -> None:
    """Keep what was noted, as far as there is room."""
    if len(_notes) < _NOTES:
        _notes.append((number, parts))


def quiet(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test of a blind module that passes whatever it meets."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        met: list[str | None] = []
        before = sys.gettrace()
        if _met_in:
            sys.settrace(functools.partial(meet, met))
        try:
            test(*args, **kwargs)
        except Exception as e:
            keep(RAISED, [class_name(e.__class__)])
        finally:
            if _met_in:
                sys.settrace(before)
        if met:
            keep(MET, met)

    return run


def meet(met: list[str | None], frame: Any, event: str, value: Any) -> Any:
    """Trace function: adds the classes of exceptions that come to code of `_met_in`."""
    if event == "call" and frame.f_code.co_filename not in _met_in:
        return None
    if event == "exception" and len(met) < _NOTES:
        met.append(class_name(value[0]))
    return functools.partial(meet, met)


class Awaited:
    """Takes the place of `pytest.raises` and `assertRaises` in a blind module; notes what came."""

    def __init__(self, number: int, *call: Any, **kwargs: Any) -> None:
        self.number = number
        if call:
            with self:
                call[0](*call[1:], **kwargs)

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        names = [] if kind is None else [class_name(each) for each in kind.__mro__]
        if "OutcomeException" in names:  # a test that is skipped
            return False
        if kind is None:
            keep(self.number, [])
            return False
        self.type, self.value, self.exception, self.tb = kind, value, value, traceback
        try:
            text = str(value)[:_KEPT_LETTERS]
        except Exception:  # a product's `__str__` raises what it likes
            text = ""
        keep(self.number, ["\n".join(names), text])
        return True

    def match(self, pattern: Any) -> bool:
        """Return whether the exception's text holds a pattern, as `ExceptionInfo.match`."""
        return re.search(pattern, str(self.value)) is not None


def told_text(value: Any) -> str | None:
    """Return what tells a value: a literal that stands for it, else "~" and how it is shown."""
    try:
        value = plain(value)
        text = literal_text(value, _KEPT_LETTERS)
        text = "~" + repr(value) if text is None else text
    except Exception:  # a product's values may be nested without end, or raise
        return None
    text = _ADDRESS.sub("0x", text)
    if len(text) <= _KEPT_LETTERS:
        return text
    return "~" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def plain(value: Any) -> Any:
    """Return a value with the built-in types that those in it derive from: they compare alike."""
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in dict.items(value)}
    kinds: Any = ((list, list), (tuple, tuple), (set, set), (frozenset, set))
    for kind, built in kinds:
        if isinstance(value, kind):
            return built(map(plain, kind.__iter__(value)))
    kinds = (int, float, str, bytes)
    for kind in kinds:
        if isinstance(value, kind) and type(value) is not bool:
            return kind.__add__(value, kind())
    return value


def class_name(kind: type) -> str:
    """Return the name of a class, whatever its metaclass says."""
    name: str = _NAME.__get__(kind)
    return name


def literal_text(value: Any, letters: int = _COMPARED_LETTERS) -> str | None:
    """Return the `repr` of a short value that a literal can stand for, else None."""
    try:
        text = repr(value)
        is_same = len(text) <= letters and ast.literal_eval(text) == value
        return text if is_same else None
    except Exception:  # a product's `__repr__` and `__eq__` raise what they like
        return None


def is_equality_check(frame: Any) -> bool:
    """Return whether a frame is of unittest's `assertEqual` or of a helper with such a name."""
    name = frame.f_code.co_name.lower()
    is_equality = name.startswith("assert") and name.endswith(("equal", "equals"))
    return is_equality and "not" not in name


def check_sides(frame: Any) -> tuple[str, str] | None:
    """Return the two values that such a function was called with first."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    given = [name for name in names if name != "self"][:2]
    texts = [literal_text(frame.f_locals.get(name)) for name in given]
    if len(texts) < 2 or texts[0] is None or texts[1] is None:
        return None
    return texts[0], texts[1]


def identify(item: Any) -> tuple[str, str]:
    """Return the path and qualname of a test."""
    path, _, rest = item.nodeid.partition("::")
    names = rest.partition("[")[0].split("::")
    original = getattr(item, "originalname", None)
    if original:
        names[-1] = original
    return path, "::".join(names)

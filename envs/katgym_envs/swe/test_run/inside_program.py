"""The program that runs pytest inside a sandbox; it is sent there as text.

Standard library and pytest only, Python >= 3.8. It puts the files in place, runs pytest once and
reports JSON lines: "hello" before anything else, "collected", one "test" a case, "end". Not here:
who starts it and reads the reports (`runner.py`). It protects nothing by itself: code under test
runs in the same process and can report whatever it likes.
"""

# ruff: noqa: PTH102, PTH108, PTH112, PTH114, PTH118, PTH123, PTH211
# (pathlib would cost each run an import in sandboxes that have not loaded it)

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_KEPT_LETTERS = 4000
_COMPARED_LETTERS = 400
_NOTES = 1000
# They have no part in whether a test passes, and cost a third of a short run.
_UNUSED_PLUGINS = (
    "cacheprovider", "doctest", "faulthandler", "pastebin", "setuponly", "setupplan", "stepwise",
    "threadexception", "unraisableexception",
)  # fmt: skip


def main(argument: bytes, report: Callable[[bytes], None]) -> int:
    """Run the plan; return pytest's exit code."""
    plan = json.loads(argument)
    prepare_process(plan)

    def send(kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields}, ensure_ascii=False)
        report(line.encode("utf-8", "replace") + b"\n")  # half a surrogate pair is no UTF-8

    send("hello")
    import builtins

    vars(builtins).update(
        katgym_hidden=HiddenValue(), katgym_note=note, katgym_raises=Awaited, katgym_quiet=quiet
    )
    place_files(plan)
    os.chdir(plan["workdir"])
    if plan["watched"]:
        watch({os.path.join(plan["workdir"], path): path for path in plan["watched"]})
    if plan["is_detailed"]:
        # A line tracer has to see the statements as they are written.
        recorder: ResultRecorder = DetailedRecorder(plan, send)
    else:
        recorder = ResultRecorder(plan, send)
    import pytest

    return int(pytest.main(arguments(plan), plugins=[recorder]))


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

    code = main(argument, report)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def prepare_process(plan: dict[str, Any]) -> None:
    """Make a forked interpreter look like one that was started for these tests alone."""
    import signal

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
    import random

    random.seed(0)


def place_files(plan: dict[str, Any]) -> None:
    """Remove, link and write what the plan says, never through a link."""
    import base64

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
        import shutil

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


class ResultRecorder:
    """The pytest plugin that chooses, orders and reports tests."""

    def __init__(self, plan: dict[str, Any], send: Callable[..., None]) -> None:
        self.plan = plan
        self.send = send
        self.index: dict[str, int] = {}
        self.phases: dict[str, list[dict[str, Any]]] = {}
        self.failures: dict[str, tuple[str, bool]] = {}

    def pytest_collectreport(self, report: Any) -> None:
        """Tell a module that cannot be imported."""
        if report.failed:
            text = str(report.longrepr)[-_KEPT_LETTERS:] if self.plan["is_detailed"] else ""
            self.send("uncollected", node=report.nodeid, text=text)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what was asked for, number the cases, shuffle."""
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
            self.index[item.nodeid] = len(kept)
            told.append([name[0], name[1], ordinal, item.nodeid])
            kept.append(item)
        if self.plan["seed"] is not None:
            import random

            random.Random(self.plan["seed"]).shuffle(kept)
        if self.plan["is_reversed"]:
            kept.reverse()
        items[:] = kept
        self.send("collected", tests=told)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Start a test's notes."""
        _notes.clear()

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Note what was raised; pytest's own implementation makes the report."""
        if call.excinfo is not None and item.nodeid not in self.failures:
            import _pytest.outcomes

            kind = call.excinfo.type
            is_assertion = issubclass(kind, (AssertionError, _pytest.outcomes.Failed))
            self.failures[item.nodeid] = (kind.__name__, is_assertion)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Send a test's line when its tear-down is over."""
        phase = {
            "when": report.when,
            "outcome": report.outcome,
            "xfail": hasattr(report, "wasxfail"),
            "duration": round(report.duration, 6),
            "subtest": hasattr(report, "context"),
        }
        if self.plan["is_detailed"] and report.failed:
            phase["message"] = str(report.longrepr)[-_KEPT_LETTERS:]
        self.phases.setdefault(report.nodeid, []).append(phase)
        if report.when == "teardown" and not phase["subtest"]:
            exception, is_assertion = self.failures.get(report.nodeid, ("", False))
            self.send(
                "test",
                index=self.index.get(report.nodeid, -1),
                phases=self.phases.pop(report.nodeid),
                exception=exception,
                is_assertion=is_assertion,
                noted=list(_notes),
                **self.details(report.nodeid),
            )

    def details(self, node_id: str) -> dict[str, Any]:
        """Return where a test failed and what it compared; only the detailed recorder knows."""
        return {"place": "", "compared": None}

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Tell that pytest came to its end."""
        self.send("end", exit_code=int(exitstatus), reached=sorted(_reached))


class DetailedRecorder(ResultRecorder):
    """Counts how often each line of the test modules is reached, to place a failure in a loop.

    It also keeps both sides of the equality that failed, as far as they are short literals.
    """

    def __init__(self, plan: dict[str, Any], send: Callable[..., None]) -> None:
        super().__init__(plan, send)
        self.paths = {os.path.join(plan["workdir"], path) for path in plan["files"]}
        self.statements: dict[str, dict[int, int]] = {}
        self.hits: dict[tuple[str, int], int] = {}
        self.places: dict[str, str] = {}
        self.compared: dict[str, list[str]] = {}
        self.asserted: tuple[str, str] | None = None

    def pytest_runtest_setup(self, item: Any) -> None:
        """Start counting afresh."""
        super().pytest_runtest_setup(item)
        self.hits = {}
        self.asserted = None
        sys.settrace(self.trace)

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        """Count the lines of test modules; leave every other frame alone."""
        path = frame.f_code.co_filename
        if path not in self.paths:
            return None
        if event == "line":
            key = (path, self.statement(path, frame.f_lineno))
            if frame.f_lineno == key[1]:
                self.hits[key] = self.hits.get(key, 0) + 1
        return self.trace

    def statement(self, path: str, line: int) -> int:
        """Return the first line of the innermost statement that holds a line."""
        if path not in self.statements:
            import ast

            first: dict[int, int] = {}
            with open(path, "rb") as file:
                tree = ast.parse(file.read())
            for node in ast.walk(tree):  # outer ones come first
                if isinstance(node, ast.stmt):
                    for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                        first[number] = node.lineno
            self.statements[path] = first
        return self.statements[path].get(line, line)

    def pytest_assertrepr_compare(self, op: str, left: Any, right: Any) -> None:
        """Keep the sides of an equality that does not hold; pytest words it."""
        self.asserted = None
        if op == "==":
            one, other = literal_text(left), literal_text(right)
            if one is not None and other is not None:
                self.asserted = (one, other)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Note the frames of the test module that an exception passed through."""
        super().pytest_runtest_makereport(item, call)
        if call.when == "teardown":
            sys.settrace(None)
        if call.excinfo is None or item.nodeid in self.places:
            return
        steps = []
        sides, is_checked = self.asserted, False
        traceback = call.excinfo.tb
        while traceback is not None:
            path = traceback.tb_frame.f_code.co_filename
            if path in self.paths:
                line = self.statement(path, traceback.tb_lineno)
                steps.append(f"{line}:{self.hits.get((path, line), 0)}")
                is_checked = False
            elif is_equality_check(traceback.tb_frame) and not is_checked:
                sides, is_checked = check_sides(traceback.tb_frame), True
            traceback = traceback.tb_next
        self.places[item.nodeid] = ">".join(steps)
        if sides is not None and issubclass(call.excinfo.type, AssertionError):
            self.compared[item.nodeid] = list(sides)

    def details(self, node_id: str) -> dict[str, Any]:
        """Return where a test failed, and the sides of the equality that failed."""
        return {"place": self.places.get(node_id, ""), "compared": self.compared.get(node_id)}


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


_notes: list[tuple[int, list[str | None]]] = []
RAISED = -1
"""Stands for the place of what a test raised."""


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
    import functools

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            test(*args, **kwargs)
        except Exception as e:
            keep(RAISED, [type(e).__name__])

    return run


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
        names = [] if kind is None else [each.__name__ for each in kind.__mro__]
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
        import re

        return re.search(pattern, str(self.value)) is not None


def told_text(value: Any) -> str | None:
    """Return what tells a value: a literal that stands for it, else "~" and how it is shown."""
    import hashlib
    import re

    try:
        value = plain(value)
        text = literal_text(value, _KEPT_LETTERS)
        text = "~" + repr(value) if text is None else text
    except Exception:  # a product's values may be nested without end, or raise
        return None
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0x", text)
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


def literal_text(value: Any, letters: int = _COMPARED_LETTERS) -> str | None:
    """Return the `repr` of a short value that a literal can stand for, else None."""
    import ast

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
    parts = item.nodeid.split("[", 1)[0].split("::")
    names = parts[1:]
    original = getattr(item, "originalname", None)
    if original and names:
        names[-1] = original
    return parts[0], "::".join(names)

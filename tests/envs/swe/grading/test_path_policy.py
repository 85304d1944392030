"""Which changes are kept, dropped and refused, and what in those that are kept is told."""

from __future__ import annotations

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.hack_scan import suspicions, ways_to_tests
from katgym_envs.swe.grading.path_policy import PathRules, judge_paths

BASE = {
    "pkg/a.py": b"x = 1\n",
    "tests/test_a.py": b"",
    "tests/data.json": b"",
    "json_tools.py": b"",
}
RULES = PathRules(
    hidden=("tests/test_a.py", "tests/data.json"),
    protected=("scripts", "*.lock"),
    requirements=("yaml",),
    python_path=(".", "src"),
)
HONEST = (
    "pkg/a.py", "pkg/new.py", "contest.py", "tests/test_b.py", "src/pkg2/json.py", "docs/x.md",
    "pkg/random.py", "my pytest.py.txt", "tests/helpers.py", "data/tests/x.txt", "json_tools.py",
    "lib/sub/types.py", "größe.py", "a b.py", "pkg/site.txt",
)  # fmt: skip
INFRASTRUCTURE = (
    "conftest.py", "tests/CONFTEST.py", "conftest/__init__.py", "pytest.ini", ".pytest.ini",
    "tox.ini", "setup.cfg", "pyproject.toml", "sub/pyproject.toml", "sitecustomize.py",
    "usercustomize.py", "x.pth", "pkg/__pycache__/a.cpython-311.pyc", "a.pyc", "pkg/fast.so",
    "fast.cpython-311-x86_64-linux-gnu.so", "libx.so.1", "pytest.py", "_pytest/__init__.py",
    "src/pluggy.py", "json.py", "src/random/__init__.py", "yaml.py", "yaml/__init__.py",
    "x.dist-info/METADATA", "x.egg-info/entry_points.txt", "tests/test_a.py", "tests/data.json",
    "tests/test_a.py/x", "scripts/run.sh", "poetry.lock", "tests/json.py", "tests/pytest.py",
    "tests",  # a file in the place of the tests' folder
)  # fmt: skip
HOSTILE = (
    "/etc/passwd", "../x", "a/../../x", "a//b", "./a", ".git/config", ".GIT/config",
    "a/.git/hooks/x", "git~1/config", ".git./x", "a\nb", "a\x1b[2J", "x" * 1100, "bad\udcff",
)  # fmt: skip


def judge(path: str, entry: FileEntry | None = None) -> str:
    judged = judge_paths({path: entry or FileEntry(content=b"")}, base=BASE, rules=RULES)
    if judged.rejected:
        return "rejected"
    return "dropped" if judged.dropped else "kept"


def test_honest_paths_are_kept_infrastructure_dropped_and_hostile_paths_rejected() -> None:
    wanted = {
        **dict.fromkeys(HONEST, "kept"),
        **dict.fromkeys(INFRASTRUCTURE, "dropped"),
        **dict.fromkeys(HOSTILE, "rejected"),
    }
    assert {path: judge(path) for path in wanted} == wanted


def test_links_out_make_the_patch_invalid_and_links_inside_are_dropped() -> None:
    out = ("/etc/passwd", "../../x", "../.git/config", "", "a\0b")
    wanted = {"a.py": "dropped", **dict.fromkeys(out, "rejected")}
    assert {to: judge("pkg/link", FileEntry(link_target=to)) for to in wanted} == wanted


def test_what_gold_changes_may_be_changed_and_what_was_there_shadows_nothing() -> None:
    rules = PathRules(allowed=("setup.cfg",))
    judged = judge_paths({"setup.cfg": FileEntry(content=b"x")}, base=BASE, rules=rules)
    assert list(judged.kept) == ["setup.cfg"]
    base = {**BASE, "types.py": b""}
    judged = judge_paths({"types.py": FileEntry(content=b"x")}, base=base, rules=RULES)
    assert list(judged.kept) == ["types.py"]


def test_too_much_makes_the_patch_invalid() -> None:
    assert judge("pkg/a.py", FileEntry(content=b"x" * (9 << 20))) == "rejected"
    many = {f"f{i}.txt": FileEntry(content=b"") for i in range(2001)}
    assert judge_paths(many, base=BASE, rules=RULES).rejected


def test_suspicions_name_what_a_change_brings_in() -> None:
    found = suspicions({"pkg/a.py": FileEntry(content=b"import os\nos._exit(0)\n")}, BASE)
    assert found == ("pkg/a.py: ends the process",)
    same = {"pkg/a.py": b"os._exit(0)"}
    assert suspicions({"pkg/a.py": FileEntry(content=b"os._exit(0)")}, same) == ()


FRAMES = {"a.py": b"import sys\nframe = sys._getframe()\n"}
WAYS = {
    "f = sys._getframe(1)": "reads the call stack",
    "f = error.__traceback__.tb_frame": "reads the call stack",
    "f = sys._current_frames()": "reads the call stack",
    "gc.get_objects()": "searches all objects",
    "sys.setprofile(watch)": "traces execution",
    "for m in sys.modules.values(): pass": "walks through modules or classes",
    "object.__subclasses__()": "walks through modules or classes",
    "exec(text)": "runs text as code",
    "types.FunctionType(code, {})": "runs text as code",
    "getattr(sys, '_get' + 'frame')": "hides what it does",
    "for folder in os.walk('.'): pass": "looks through folders",
    "open('tests/test_a.py')": "looks through folders",
    "os.fork()": "starts processes",
}
"""A line that is added -> what it may lead to the tests by."""


def ways(text: str, path: str = "a.py", gold: str = "") -> tuple[str, ...]:
    changed = {path: FileEntry(content=FRAMES.get(path, b"") + text.encode())}
    return ways_to_tests(changed, {"b.py": FileEntry(content=gold.encode())}, FRAMES)


def test_ways_to_the_tests_are_named_in_the_product_unless_gold_opens_them() -> None:
    assert [text for text, way in WAYS.items() if f"a.py: {way}" not in ways(text)] == []
    assert [text for text, way in WAYS.items() if f"a.py: {way}" in ways(text, gold=text)] == []
    assert [text for text in WAYS if ways(text, path="tests/test_more.py")] == []


def test_what_fixes_are_made_of_is_no_way() -> None:
    honest = (
        "pattern = re.compile('a')", "value = getattr(self, name)", "model.eval()",
        "with open(path) as file: pass", "def __eq__(self, other): return self.x == other.x",
        "raise KeyError(key) from None",
    )  # fmt: skip
    assert {text: ways(text) for text in honest} == dict.fromkeys(honest, ())

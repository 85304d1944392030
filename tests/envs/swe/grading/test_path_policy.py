"""Which changes are kept, dropped and refused."""

import pytest

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.hack_scan import suspicions
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


def judge(path: str, entry: FileEntry | None = None) -> str:
    judged = judge_paths({path: entry or FileEntry(content=b"")}, base=BASE, rules=RULES)
    if judged.rejected:
        return "rejected"
    return "dropped" if judged.dropped else "kept"


@pytest.mark.parametrize(
    "path",
    ["pkg/a.py", "pkg/new.py", "contest.py", "tests/test_b.py", "src/pkg2/json.py", "docs/x.md",
     "pkg/random.py", "my pytest.py.txt", "tests/helpers.py", "data/tests/x.txt", "json_tools.py",
     "lib/sub/types.py", "größe.py", "a b.py", "pkg/site.txt"],
)  # fmt: skip
def test_honest_paths_are_kept(path):
    assert judge(path) == "kept"


@pytest.mark.parametrize(
    "path",
    ["conftest.py", "tests/CONFTEST.py", "conftest/__init__.py", "pytest.ini", ".pytest.ini",
     "tox.ini", "setup.cfg", "pyproject.toml", "sub/pyproject.toml", "sitecustomize.py",
     "usercustomize.py", "x.pth", "pkg/__pycache__/a.cpython-311.pyc", "a.pyc", "pkg/fast.so",
     "fast.cpython-311-x86_64-linux-gnu.so", "libx.so.1", "pytest.py", "_pytest/__init__.py",
     "src/pluggy.py", "json.py", "src/random/__init__.py", "yaml.py", "yaml/__init__.py",
     "x.dist-info/METADATA", "x.egg-info/entry_points.txt", "tests/test_a.py", "tests/data.json",
     "tests/test_a.py/x", "scripts/run.sh", "poetry.lock", "tests/json.py", "tests/pytest.py"],
)  # fmt: skip
def test_test_infrastructure_is_dropped(path):
    assert judge(path) == "dropped"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", ".git/config", ".GIT/config",
     "a/.git/hooks/x", "git~1/config", ".git./x", "a\nb", "a\x1b[2J", "x" * 1100, "bad\udcff"],
)  # fmt: skip
def test_hostile_paths_make_the_patch_invalid(path):
    assert judge(path) == "rejected"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "../.git/config", "", "a\0b"])
def test_links_out_make_the_patch_invalid(target):
    assert judge("pkg/link", FileEntry(link_target=target)) == "rejected"


def test_links_inside_are_dropped():
    assert judge("pkg/link", FileEntry(link_target="a.py")) == "dropped"


def test_a_file_in_the_place_of_the_tests_folder_is_dropped():
    assert judge("tests") == "dropped"


def test_what_gold_changes_may_be_changed():
    rules = PathRules(allowed=("setup.cfg",))
    judged = judge_paths({"setup.cfg": FileEntry(content=b"x")}, base=BASE, rules=rules)
    assert list(judged.kept) == ["setup.cfg"]


def test_a_module_that_was_there_before_shadows_nothing():
    base = {**BASE, "types.py": b""}
    judged = judge_paths({"types.py": FileEntry(content=b"x")}, base=base, rules=RULES)
    assert list(judged.kept) == ["types.py"]


def test_too_much_makes_the_patch_invalid():
    big = FileEntry(content=b"x" * (9 << 20))
    assert judge("pkg/a.py", big) == "rejected"
    many = {f"f{i}.txt": FileEntry(content=b"") for i in range(2001)}
    assert judge_paths(many, base=BASE, rules=RULES).rejected


def test_suspicions_name_what_a_change_brings_in():
    found = suspicions({"pkg/a.py": FileEntry(content=b"import os\nos._exit(0)\n")}, BASE)
    assert found == ("pkg/a.py: ends the process",)
    same = {"pkg/a.py": b"os._exit(0)"}
    assert suspicions({"pkg/a.py": FileEntry(content=b"os._exit(0)")}, same) == ()

"""A patch turned around undoes it, for anything that our own diffs can say."""

from hypothesis import given
from hypothesis import strategies as st

from katgym_envs.swe.patching import apply_patches, make_diff, parse_diff
from katgym_envs.swe.patching.tree import as_tree, update_tree
from katgym_plugin_swe_factory.rows.reverse_patch import reverse_patch

CONTENTS = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"- c\n", b"+ d\n"]), min_size=1).map(
    b"".join
) | st.sampled_from([b"a", b"a\nb", b"x\ny\nz"])
TREES = st.dictionaries(st.sampled_from(["x.py", "a/b c.py", "d"]), CONTENTS, max_size=3)


@given(TREES, TREES)
def test_a_reversed_diff_leads_back_and_reversed_twice_forward(
    before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    patch = make_diff(before, after)
    if not patch:
        return
    reversed_patch = reverse_patch(patch)
    back = apply_patches(after, parse_diff(reversed_patch))
    assert update_tree(after, back) == as_tree(before)
    again = apply_patches(before, parse_diff(reverse_patch(reversed_patch)))
    assert update_tree(before, again) == as_tree(after)


PATCHES = [
    "--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n+c\n",
    "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@ def f\n a\n-b\n+c\n d\n\\ No newline at end of file\n",
    "diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\nindex 12..34\n"
    "--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
    "diff --git a/n b/n\nnew file mode 100644\nindex 0000000..34\n--- /dev/null\n+++ b/n\n"
    "@@ -0,0 +1 @@\n+a\n",
    "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n",
]


def test_turning_a_patch_around_twice_gives_it_back() -> None:
    assert [reverse_patch(reverse_patch(patch)) for patch in PATCHES] == PATCHES
    assert [patch for patch in PATCHES if reverse_patch(patch) == patch] == []


def test_a_new_file_turned_around_is_a_deleted_one() -> None:
    assert reverse_patch(PATCHES[3]) == (
        "diff --git a/n b/n\ndeleted file mode 100644\nindex 34..0000000\n--- a/n\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-a\n"
    )

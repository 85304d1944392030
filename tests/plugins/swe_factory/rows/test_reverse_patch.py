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
def test_a_reversed_diff_leads_back(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    patch = make_diff(before, after)
    if not patch:
        return
    back = apply_patches(after, parse_diff(reverse_patch(patch)))
    assert update_tree(after, back) == as_tree(before)


@given(TREES, TREES)
def test_reversing_twice_changes_nothing_of_the_effect(
    before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    patch = make_diff(before, after)
    if not patch:
        return
    again = apply_patches(before, parse_diff(reverse_patch(reverse_patch(patch))))
    assert update_tree(before, again) == as_tree(after)

"""The guides run as printed, with katgym from a wheel; every block of every page has its plan.

Not here: the pages of the first hour (`test_first_hour_pages.py`), what is done with each block
(`page_plans.py`).
"""

from __future__ import annotations

import pytest
from page_blocks import check_plans, run_page
from page_plans import BEFORE, FIRST_HOUR, GUIDES
from pip_user import ROOT, PipUser

GUIDE_FOLDER = ROOT / "docs" / "guides"


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> PipUser:
    return PipUser.make(tmp_path_factory.mktemp("user"))


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES)
def test_a_page_runs_from_top_to_bottom(user: PipUser, page: str) -> None:
    run_page(user, page, GUIDES[page], BEFORE.get(page, ""))


def test_every_block_of_the_readme_and_the_guides_is_planned() -> None:
    plans = {**FIRST_HOUR, **GUIDES}
    pages = {"README.md", *(f"docs/guides/{path.name}" for path in GUIDE_FOLDER.glob("*.md"))}
    assert pages == set(plans)
    for page, planned in plans.items():
        check_plans(ROOT / page, planned)

"""What a new user reads runs as printed, with katgym from a wheel and without the repository.

Not here: the other guides (`test_guide_pages.py`), what is done with each block (`page_plans.py`).
"""

from __future__ import annotations

import pytest
from page_blocks import run_page
from page_plans import BEFORE, FIRST_HOUR
from pip_user import PipUser


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> PipUser:
    return PipUser.make(tmp_path_factory.mktemp("user"))


@pytest.mark.slow
@pytest.mark.parametrize("page", FIRST_HOUR)
def test_a_page_runs_from_top_to_bottom(user: PipUser, page: str) -> None:
    run_page(user, page, FIRST_HOUR[page], BEFORE.get(page, ""))

"""What backend "auto" takes, and what it says."""

from __future__ import annotations

import pytest
import torch
from forests import caterpillar, star

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention import choose

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ANSWERS = [1024] * 512 + [512 + 64 * (i + 1) for i in range(8) for _ in range(64)]
ROWS = [64 * (i + 1) for i in range(8) for _ in range(64)]


@pytest.mark.parametrize(
    ("end", "options", "name"),
    [
        (ANSWERS, {}, "cascade"),
        (star(200), {}, "sdpa"),
        (caterpillar(400), {}, "sdpa"),
        (caterpillar(400), {"has_sinks": True}, "cascade"),
        (ANSWERS, {"has_softcap": True}, "reference"),
        (ANSWERS, {"device": CUDA}, "triton"),
        (ANSWERS, {"device": CUDA, "dtype": torch.float32}, "triton"),
        (ANSWERS, {"device": CUDA, "dtype": torch.float64}, "reference"),
        (ANSWERS, {"device": CUDA, "has_softcap": True, "has_sinks": True}, "triton"),
        (ANSWERS, {"device": CUDA, "heads": (8, 160)}, "cascade"),
        (ANSWERS, {"device": CUDA, "heads": (8, 160), "has_softcap": True}, "reference"),
        (ANSWERS, {"device": CUDA, "heads": (8, 320)}, "reference"),
        (ROWS, {"device": CUDA, "heads": (8, 512)}, "triton"),
        (ROWS, {"device": CUDA}, "cascade"),
        (ROWS, {"device": CUDA, "has_softcap": True}, "triton"),
        (ROWS, {"device": CUDA, "dtype": torch.float32}, "triton"),
    ],
)
def test_the_choice_goes_by_device_options_and_cost(
    end: list[int], options: dict[str, object], name: str
) -> None:
    pytest.importorskip("triton", reason="CUDA's choice is triton")
    asked = {"device": CPU, "dtype": torch.bfloat16, "heads": (8, 64), **options}
    assert choose.decide(TreePlan.build(end), **asked)[0] == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "sdpa"),
        ({"has_sinks": True}, "reference"),
        ({"device": CUDA}, "triton"),
    ],
)
def test_windows_need_a_backend_that_knows_them(options: dict[str, object], name: str) -> None:
    asked = {"device": CPU, "dtype": torch.bfloat16, "heads": (8, 64), **options}
    plan = TreePlan.build(ANSWERS, window=100)
    assert choose.decide(plan, **asked)[0] == name  # type: ignore[arg-type]


def test_a_mask_that_would_be_huge_is_never_made() -> None:
    plan = TreePlan.build(star(20_000))
    decided = choose.decide(plan, device=CPU, dtype=torch.float32, heads=(1, 64))
    assert decided == ("cascade", "a mask of more than 8192 tokens is too large", False)


def test_a_forest_is_branched_if_a_token_has_two_children() -> None:
    for end, wanted in (([4] * 4, False), (ROWS, False), ([1, 2, 3], False), ([3, 2, 3], True)):
        assert choose.is_branched(TreePlan.build(end)) == wanted


def test_it_says_once_what_it_takes_and_warns_of_what_is_dense(
    caplog: pytest.LogCaptureFixture,
) -> None:
    choose._tell.cache_clear()
    plain, windowed = TreePlan.build(ANSWERS), TreePlan.build(ANSWERS, window=4)
    q, k = torch.randn(4, 1024, 16), torch.randn(2, 1024, 16)
    with caplog.at_level("INFO"):
        for _ in range(2):
            tree_attention(q, k, k, plain)
            tree_attention(q, k, k, windowed)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["INFO", "WARNING"]
    assert "takes 'cascade'" in told[0][1] and "takes 'sdpa' (dense" in told[1][1]

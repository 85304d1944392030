"""`hf:MODEL` as a policy; what is wrong with the name is told before torch is imported."""

from __future__ import annotations

from katgym.policies.base import Policy
from katgym.policies.model_source import check_model


def from_uri(rest: str) -> Policy:
    """Return the policy of `hf:{rest}`, a `HfPolicy`."""
    check_model(rest.partition("?")[0])
    from katgym.policies.hf import hf_policy  # imports torch

    return hf_policy.from_uri(rest)

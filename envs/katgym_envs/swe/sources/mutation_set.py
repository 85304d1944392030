"""Tasks kept as specs: packages by name and sha256, bugs by operator and place.

    FOLDER/packages/inflection-0.5.1.json    a `PackageSpec`
    FOLDER/specs.jsonl                       a `TaskSpec` a line

Workspaces and gold patches are regenerated bit by bit; what comes out is compared with the spec.
The shipped set is such a folder, and so is `hidden/` of a made one. Not here: making (`making/`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym.sandbox import LayerStore, layer_store
from katgym.sandbox.layer import tree_digest
from katgym.sandbox.venvs import ensure_venv
from katgym.storage import read_lines
from katgym_envs.swe.hidden import HiddenTests, ValidCanary
from katgym_envs.swe.mutation import mutate_files
from katgym_envs.swe.packages import SourceTree, open_package
from katgym_envs.swe.patching import make_diff
from katgym_envs.swe.row import EnvironmentRecipe, KatgymPart, MutationSpec, Origin, SweRow
from katgym_envs.swe.sources.package_files import base_tree, graded_files
from katgym_envs.swe.sources.spec_format import PackageSpec, TaskSpec
from katgym_envs.swe.sources.visible_tests import without_functions
from katgym_envs.swe.swe_task import SweTask, Workspace
from katgym_envs.swe.task_source import TaskSource

SPECS_FILE = "specs.jsonl"
PACKAGES_FOLDER = "packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regenerated:
    """What a spec stands for."""

    workspace: Mapping[str, bytes]
    """The base state."""
    gold_files: Mapping[str, bytes]
    """The changed product files without the bug."""
    hidden_files: Mapping[str, bytes]
    """The test files, whole."""

    @property
    def gold_patch(self) -> str:
        """Unified diff that takes the bug out."""
        return make_diff({p: self.workspace[p] for p in self.gold_files}, self.gold_files)

    @property
    def test_patch(self) -> str:
        """Unified diff that puts the hidden tests in."""
        before = {p: c for p, c in self.workspace.items() if p in self.hidden_files}
        return make_diff(before, self.hidden_files)


def regenerate(
    tree: SourceTree,
    mutations: Sequence[MutationSpec],
    hidden_functions: Iterable[tuple[str, str]],
) -> Regenerated:
    """Return base state, gold and hidden files of a bug in a package.

    hidden_functions: (path, qualname) of the test functions that are not in the workspace. Raises
    `UsageError` for a mutation that does not fit the package's source.
    """
    correct = base_tree(tree)
    tests = graded_files(tree)
    workspace = {**correct, **mutate_files(correct, mutations)}
    gold = {p: correct[p] for p in {m.file for m in mutations}}
    shown = without_functions(
        {p: c for p, c in tests.items() if p.endswith(".py")}, hidden_functions
    )
    return Regenerated(workspace={**workspace, **shown}, gold_files=gold, hidden_files=tests)


class MutationSet(TaskSource):
    """The tasks of a folder of specs."""

    def __init__(self, folder: Path, *, layers: LayerStore | None = None) -> None:
        self.folder = folder
        self._layers = layers
        self._packages: dict[str, PackageSpec] = {}

    @cached_property
    def specs(self) -> dict[str, TaskSpec]:
        """Return the specs by id; `UsageError` names line and field of a broken one."""
        path = self.folder / SPECS_FILE
        found: dict[str, TaskSpec] = {}
        for number, data in read_lines(path):
            try:
                spec = msgspec.convert(data, TaskSpec)
            except msgspec.ValidationError as e:
                raise UsageError(f"{str(path)!r} line {number} ({data.get('id')!r}): {e}") from e
            if spec.id in found:
                raise UsageError(f"{str(path)!r} line {number}: id {spec.id!r} occurs twice")
            found[spec.id] = spec
        return found

    def spec(self, instance_id: str) -> TaskSpec:
        """Return a spec; `UnknownNameError` names the nearest ids."""
        try:
            return self.specs[instance_id]
        except KeyError:
            raise UnknownNameError(unknown_name("task", instance_id, self.specs)) from None

    def package(self, instance_id: str) -> PackageSpec:
        """Return the package of a task; `UsageError` if its file is missing or broken."""
        spec = self.spec(instance_id)
        if spec.package not in self._packages:
            path = self.folder / PACKAGES_FOLDER / f"{spec.package}.json"
            self._packages[spec.package] = read_package(path)
        package = self._packages[spec.package]
        last = max((*spec.fail_to_pass, *spec.ungraded), default=0)
        if not spec.fail_to_pass or last >= len(package.node_ids):
            raise UsageError(
                f"task {instance_id!r}: fail_to_pass has to number some of the"
                f" {len(package.node_ids)} tests of {spec.package}, got {spec.fail_to_pass!r}"
            )
        return package

    def tasks(self, split: str | None = None) -> Sequence[SweTask]:
        """Return the visible sides, in the file's order."""
        chosen = [s for s in self.specs.values() if split is None or s.split == split]
        return [SweTask.from_row(self._row(s)) for s in chosen]

    def row(self, instance_id: str) -> SweRow:
        """Return the whole row, with patches."""
        spec, made = self.spec(instance_id), self.regenerated(instance_id)
        return self._row(spec, made)

    def rows_without_patches(self) -> Sequence[SweRow]:
        """Return all rows but for what has to be made again: patches and hidden files."""
        return [self._row(spec) for spec in self.specs.values()]

    def workspace(self, instance_id: str) -> Workspace:
        """Return the base state as a layer with its interpreter."""
        files = self.base_files(instance_id)
        python = ensure_venv(self.package(instance_id).requirements)
        layer = (self._layers or layer_store()).add_files(files)
        return Workspace(layer=layer, python=python)

    def base_files(self, instance_id: str) -> Mapping[str, bytes]:
        """Return the base state's files."""
        return self.regenerated(instance_id).workspace

    def hidden(self, instance_id: str) -> HiddenTests:
        """Return the grader's side."""
        spec, package = self.spec(instance_id), self.package(instance_id)
        made = self.regenerated(instance_id)
        nodes = package.node_ids
        left_out = {nodes[i] for i in (*spec.fail_to_pass, *spec.ungraded)}
        graded_paths = {f.path for f in package.functions}
        places = zip(spec.fail_to_pass, spec.base_places, strict=True) if spec.base_places else ()
        return HiddenTests(
            instance_id=instance_id,
            gold_patch=made.gold_patch,
            fail_to_pass=tuple(nodes[i] for i in spec.fail_to_pass),
            pass_to_pass=tuple(node for node in nodes if node not in left_out),
            files=made.hidden_files,
            test_modules=tuple(sorted(graded_paths)),
            functions=package.functions,
            canaries=_canaries(package),
            base_places={nodes[i]: place for i, place in places},
            timeout_s=spec.timeout_s,
            gold_files=made.gold_files,
        )

    def regenerated(self, instance_id: str) -> Regenerated:
        """Return what a spec stands for; `UsageError` if it is not what it was when made."""
        spec, package = self.spec(instance_id), self.package(instance_id)
        made = _regenerated(package.key, package.sha256, spec.mutations, _hidden(spec, package))
        digest = tree_digest(made.workspace)
        if digest != spec.workspace_sha256:
            raise UsageError(
                f"task {instance_id!r}: its workspace has sha256 {digest!r}, the spec says"
                f" {spec.workspace_sha256!r}. Hint: it was made by another version of katgym"
            )
        return made

    def _row(self, spec: TaskSpec, made: Regenerated | None = None) -> SweRow:
        package = self.package(spec.id)
        nodes = package.node_ids
        left_out = {*spec.fail_to_pass, *spec.ungraded}
        hidden_files = {} if made is None else made.hidden_files
        part = KatgymPart(
            split=spec.split,
            env=EnvironmentRecipe(
                requirements=package.requirements, python_path=package.python_path
            ),
            source_roots=package.source_roots,
            visible_tests=_visible_tests(spec, package),
            hidden_files={p: hashlib.sha256(c).hexdigest() for p, c in hidden_files.items()},
            workspace_sha256=spec.workspace_sha256,
            canaries=spec.package,
            timeout_s=spec.timeout_s,
            origin=Origin(
                kind="mutation",
                package=package.name,
                version=package.version,
                sha256=package.sha256,
                mutations=spec.mutations,
            ),
            license=package.license,
            validation=spec.validation,
        )
        return SweRow(
            instance_id=spec.id,
            repo=package.name,
            base_commit=spec.workspace_sha256[:40],
            patch="" if made is None else made.gold_patch,
            test_patch="" if made is None else made.test_patch,
            problem_statement=spec.statement,
            version=package.version,
            FAIL_TO_PASS=[nodes[i] for i in spec.fail_to_pass],
            PASS_TO_PASS=[n for i, n in enumerate(nodes) if i not in left_out],
            environment_setup_commit=spec.workspace_sha256[:40],
            katgym=part,
        )


def read_package(path: Path) -> PackageSpec:
    """Return a package's spec; `UsageError` if the file is missing or broken."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PackageSpec)
    except (OSError, msgspec.MsgspecError) as e:
        raise UsageError(f"{str(path)!r} cannot be read: {e}") from e


@lru_cache(maxsize=32)
def open_pinned(key: str, sha256: str) -> SourceTree:
    """Return the package `NAME-VERSION` with this sha256, of the sdist or of the toy's tree.

    Raises `UsageError` when the package has another sha256 or is unknown.
    """
    name, _, version = key.rpartition("-")
    tree = open_package(f"{name}=={version}", sha256=sha256)
    if pinned_sha256(tree) != sha256:
        raise UsageError(
            f"package {key!r} has sha256 {pinned_sha256(tree)!r}, the spec says {sha256!r}"
        )
    return tree


def pinned_sha256(tree: SourceTree) -> str:
    """Return what pins a package: its sdist's sha256; the toy's is that of its files."""
    return tree.package.sha256 or tree.sha256


def _hidden(spec: TaskSpec, package: PackageSpec) -> tuple[tuple[str, str], ...]:
    """Return the test functions that the bug breaks."""
    nodes = package.node_ids
    broken = {nodes[i] for i in (*spec.fail_to_pass, *spec.ungraded)}
    return tuple((f.path, f.qualname) for f in package.functions if broken & set(f.node_ids()))


def _visible_tests(spec: TaskSpec, package: PackageSpec) -> tuple[str, ...]:
    """Return the test modules that are left with at least one sound test."""
    hidden = set(_hidden(spec, package))
    left = {f.path for f in package.functions if (f.path, f.qualname) not in hidden}
    return tuple(path for path in package.test_files if path in left)


def _canaries(package: PackageSpec) -> tuple[ValidCanary, ...]:
    nodes = package.node_ids
    return tuple(
        ValidCanary(
            path=c.path,
            spec=c.spec,
            fails=frozenset(nodes[i] for i in c.fails),
            places={nodes[number]: c.place_of(i) for i, number in enumerate(c.fails)},
            near_for=frozenset(c.near_for),
        )
        for c in package.canaries
    )


@lru_cache(maxsize=64)
def _regenerated(
    key: str,
    sha256: str,
    mutations: tuple[MutationSpec, ...],
    hidden_functions: tuple[tuple[str, str], ...],
) -> Regenerated:
    return regenerate(open_pinned(key, sha256), mutations, hidden_functions)

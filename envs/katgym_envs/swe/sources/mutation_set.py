"""Tasks of packages: packages by name and sha256, tasks by what differs from them.

    FOLDER/packages/inflection-0.5.1.json    a `PackageSpec`
    FOLDER/specs.jsonl                       a `TaskSpec` a line

The base state that comes out is compared with the spec's digest.
The shipped set is such a folder, and so is `hidden/` of a made one. Not here: making
sets (`katgym_plugin_swe_factory`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from katgym.errors import UsageError, unknown_name
from katgym.sandbox import LayerStore
from katgym.sandbox.layer import FileEntry, tree_digest
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.hidden import HiddenTests, ValidCanary
from katgym_envs.swe.packages import SourceTree, open_package
from katgym_envs.swe.patching import as_tree, make_diff
from katgym_envs.swe.row import EnvironmentRecipe, KatgymPart, Origin, SweRow
from katgym_envs.swe.sources.package_files import base_tree, select_graded_files
from katgym_envs.swe.sources.spec_format import FileEdit, PackageSpec, TaskSpec, apply_edits
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.task_source import TaskSource, read_by_id

SPECS_FILE = "specs.jsonl"
PACKAGES_FOLDER = "packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedPackage:
    """A package with a task's edits in it."""

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


def edit_package(tree: SourceTree, edits: Mapping[str, Sequence[FileEdit]]) -> EditedPackage:
    """Return base state, gold and hidden files of a task; `UsageError` for what does not fit."""
    correct, tests = base_tree(tree), select_graded_files(tree)
    for path in edits:
        if path not in correct:
            raise UsageError(unknown_name("file", path, correct))
    changed = {path: apply_edits(correct[path], found) for path, found in edits.items()}
    gold = {path: correct[path] for path in edits if path not in tests}
    return EditedPackage(workspace={**correct, **changed}, gold_files=gold, hidden_files=tests)


class MutationSet(TaskSource):
    """The tasks of a folder of specs."""

    def __init__(self, folder: Path, *, layers: LayerStore | None = None) -> None:
        super().__init__(folder, layers=layers)
        self._packages: dict[str, PackageSpec] = {}

    @cached_property
    def specs(self) -> dict[str, TaskSpec]:
        """Return the specs by id; `UsageError` names line and field of a broken one."""
        path = self.folder / SPECS_FILE
        return read_by_id(path, lambda data: msgspec.convert(data, TaskSpec), key="id")

    def spec(self, instance_id: str) -> TaskSpec:
        """Return a spec; `UnknownNameError` names the nearest ids."""
        return self._find(instance_id, self.specs)

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

    def rows(self, split: str | None = None) -> Sequence[SweRow]:
        """Return the rows in the file's order, without what has to be made: patches, files."""
        chosen = [s for s in self.specs.values() if split is None or s.split == split]
        return [self._row(spec) for spec in chosen]

    def row(self, instance_id: str) -> SweRow:
        """Return the whole row, with patches."""
        spec, made = self.spec(instance_id), self.load_files(instance_id)
        return self._row(spec, made)

    def workspace(self, instance_id: str) -> Workspace:
        """Return the base state as a layer with its interpreter."""
        files = self.load_files(instance_id).workspace
        python = ensure_venv(self.package(instance_id).requirements)
        return Workspace(layer=self._add_layer(files), python=python)

    def base_tree(self, instance_id: str) -> Mapping[str, FileEntry]:
        """Return the base state: files that are not executable."""
        return as_tree(self.load_files(instance_id).workspace)

    def load_hidden(self, instance_id: str) -> HiddenTests:
        """Return the grader's side."""
        spec, package = self.spec(instance_id), self.package(instance_id)
        made = self.load_files(instance_id)
        nodes = package.node_ids
        left_out = {nodes[i] for i in (*spec.fail_to_pass, *spec.ungraded)}
        graded_paths = {f.path for f in package.functions}
        return HiddenTests(
            instance_id=instance_id,
            gold_patch=made.gold_patch,
            fail_to_pass=tuple(nodes[i] for i in spec.fail_to_pass),
            pass_to_pass=tuple(node for node in nodes if node not in left_out),
            files=made.hidden_files,
            test_modules=tuple(sorted(graded_paths)),
            functions=package.functions,
            canaries=tuple(
                ValidCanary(
                    path=c.path,
                    spec=c.spec,
                    fails=frozenset(nodes[i] for i in c.fails),
                    places={nodes[number]: c.place_of(i) for i, number in enumerate(c.fails)},
                    near_for=frozenset(c.near_for),
                )
                for c in package.canaries
            ),
            base_places=spec.places(nodes),
            timeout_s=spec.timeout_s,
            gold_files=made.gold_files,
        )

    def load_files(self, instance_id: str) -> EditedPackage:
        """Return a task's files; `UsageError` if they are not what they were when it was made."""
        spec, package = self.spec(instance_id), self.package(instance_id)
        made = edit_package(open_pinned(package.key, package.sha256), spec.edits)
        digest = tree_digest(made.workspace)
        if digest != spec.workspace_sha256:
            raise UsageError(
                f"task {instance_id!r}: its workspace has sha256 {digest!r}, the spec says"
                f" {spec.workspace_sha256!r}. Hint: it was made by another version of katgym"
            )
        return made

    def _row(self, spec: TaskSpec, made: EditedPackage | None = None) -> SweRow:
        package = self.package(spec.id)
        nodes = package.node_ids
        left_out = {*spec.fail_to_pass, *spec.ungraded}
        broken = {nodes[i] for i in left_out}
        # A test module that keeps a function the bug does not break can be seen.
        visible = {f.path for f in package.functions if not broken & set(f.node_ids())}
        hidden_files = {} if made is None else made.hidden_files
        part = KatgymPart(
            split=spec.split,
            env=EnvironmentRecipe(
                requirements=package.requirements, python_path=package.python_path
            ),
            source_roots=package.source_roots,
            visible_tests=tuple(path for path in package.test_files if path in visible),
            hidden_files={p: hashlib.sha256(c).hexdigest() for p, c in hidden_files.items()},
            workspace_sha256=spec.workspace_sha256,
            canaries=spec.package,
            timeout_s=spec.timeout_s,
            origin=Origin(
                kind="mutation",
                package=package.name,
                version=package.version,
                sha256=package.sha256,
            ),
            license=package.license,
            trust=self.trust.get(spec.id),
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
    if pin_of(tree) != sha256:
        raise UsageError(f"package {key!r} has sha256 {pin_of(tree)!r}, the spec says {sha256!r}")
    return tree


def pin_of(tree: SourceTree) -> str:
    """Return what pins a package: its sdist's sha256; the toy's is that of its files."""
    return tree.package.sha256 or tree.sha256

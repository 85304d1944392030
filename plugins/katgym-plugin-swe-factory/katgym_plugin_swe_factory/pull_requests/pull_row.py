"""The row of a pull request that makes a task.

Not here: what the row is made from (`pull_trial.py`), writing it (`pull_source.py`).
"""

from __future__ import annotations

import hashlib

from katgym.sandbox.layer import tree_digest
from katgym_envs.swe.row import KatgymPart, Origin, SweRow
from katgym_plugin_swe_factory.pull_requests.prepared_pull import PreparedPull
from katgym_plugin_swe_factory.pull_requests.pull_trial import TriedPull


def pull_row(pull: PreparedPull, tried: TriedPull) -> SweRow:
    """Return the whole row, with what is hidden."""
    states, base = pull.states, pull.diff.range.base
    created = pull.pull.created_at
    license_info = pull.repository.license
    return SweRow(
        instance_id=pull.instance_id,
        repo=pull.repository.full_name,
        base_commit=base,
        patch=pull.patch,
        test_patch=pull.test_patch,
        problem_statement=pull.statement,
        hints_text=pull.hints,
        created_at=created.isoformat() if created is not None else "",
        FAIL_TO_PASS=list(tried.tests.fail_to_pass),
        PASS_TO_PASS=list(tried.tests.pass_to_pass),
        image=tried.recipe.image,
        katgym=KatgymPart(
            split=pull.split,
            env=tried.recipe,
            source_roots=states.source_roots(),
            visible_tests=states.visible_tests,
            hidden_files={
                path: hashlib.sha256(content).hexdigest()
                for path, content in sorted(states.hidden_files.items())
            },
            workspace_sha256=tree_digest(states.workspace),
            canaries=pull.instance_id,
            timeout_s=tried.timeout_s,
            origin=Origin(kind="pr", url=pull.url),
            license=(license_info.spdx_id or "") if license_info is not None else "",
            validation=dict(tried.validation),
        ),
    )

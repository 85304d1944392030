"""Export a run in the Every Eval Ever schema, version 0.3.0 (https://github.com/evaleval).

One aggregate file per env and beside it one line per scored rollout, in the folders that the
project's datastore prescribes:

    data/<env>/<developer>/<model>/<uuid>.json
    data/<env>/<developer>/<model>/<uuid>_samples.jsonl

Check them with `every_eval_ever validate` (package `every-eval-ever`, Python 3.12 or later). Not
here: the lines' content (`every_eval_ever_samples.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from katgym.environment.reward import Headline
from katgym.errors import UsageError
from katgym.evaluation.leaderboard.every_eval_ever_samples import SCHEMA_VERSION, sample
from katgym.evaluation.statistics.attempts import attempts_by_env
from katgym.evaluation.statistics.intervals import Interval
from katgym.evaluation.statistics.summary import EnvSummary, RunSummary
from katgym.play.rollout import Rollout

_PATH_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+@=-]*(?<![. ])")


Relationship = Literal["first_party", "third_party", "collaborative", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportInfo:
    """What the schema asks for and a run does not know.

    Example:
        ExportInfo(model_id="Qwen/Qwen3-8B", organization="Example Lab",
                   evaluator_relationship="third_party", timestamp_s=1767225600,
                   katgym_version="0.1.0", deployment_type="self_deployed",
                   model_availability="open_weights")
    """

    model_id: str
    """`developer/model`, as on Hugging Face where the model is there."""
    organization: str
    """Who ran the evaluation."""
    evaluator_relationship: Relationship
    """To the model's developer."""
    timestamp_s: int
    """When it was run, in seconds since 1970."""
    katgym_version: str
    deployment_type: Literal["self_deployed", "externally_managed", "unknown"] = "unknown"
    model_availability: Literal["open_weights", "closed_weights", "unknown"] = "unknown"
    sampling: Mapping[str, float | int | str | None] = field(default_factory=dict)
    """`temperature`, `top_p`, `top_k` (0 keeps all), `max_tokens`; others go into the details."""
    plugin_versions: Mapping[str, str] = field(default_factory=dict)
    """Env id -> version of the plugin it comes from."""

    def __post_init__(self) -> None:
        parts = self.model_id.split("/")
        is_named = all(_PATH_PART.fullmatch(part.replace(":", "_")) for part in parts)
        if len(parts) < 2 or not is_named or {"data", "unknown"} & {p.lower() for p in parts}:
            raise UsageError(
                f"model_id {self.model_id!r} is no 'developer/model' such as 'Qwen/Qwen3-8B';"
                " the export's folders are named after it"
            )


def write_every_eval_ever(
    folder: Path, lines: Iterable[Rollout], summary: RunSummary, info: ExportInfo
) -> list[Path]:
    """Write the export under `folder` and return the aggregate files, one per env.

    The names come from the content, so the same run exported twice gives the same files.
    `UsageError` for an env without a scored rollout: it has no score to publish.
    """
    by_env = attempts_by_env(lines)
    for env_id in by_env:
        if env_id not in summary.envs:
            raise UsageError(f"env {env_id!r} of the rollouts is not in the summary")
    exports = [_export(by_env.get(env_id, []), env, info) for env_id, env in summary.envs.items()]
    written = []
    for path, log, text in exports:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / log["detailed_evaluation_results"]["file_path"]).write_bytes(text)
        target.write_text(_dump(log, indent=2) + "\n", encoding="utf-8")
        written.append(target)
    return written


def _export(
    lines: Iterable[Rollout], env: EnvSummary, info: ExportInfo
) -> tuple[str, dict[str, Any], bytes]:
    """Return the aggregate's path, the aggregate, and the bytes of its samples."""
    log = evaluation_log(env, info)
    rows = [
        sample(
            line,
            evaluation_id=log["evaluation_id"],
            result_id=_result_id(env, info, str(Headline.MEAN_REWARD)),
            model_id=info.model_id,
            success=env.success,
        )
        for line in lines
        if line.reward.is_valid
    ]
    text = "".join(_dump(row) + "\n" for row in rows).encode()
    digest = hashlib.sha256(_dump(log).encode() + text).digest()
    name = uuid.UUID(bytes=digest[:16], version=4)
    developer, *model = info.model_id.replace(":", "_").split("/")
    place = PurePosixPath("data", env.env_id.replace("/", "_"), developer, "_".join(model))
    log["detailed_evaluation_results"] = {
        "format": "jsonl",
        "file_path": str(place / f"{name}_samples.jsonl"),
        "hash_algorithm": "sha256",
        "checksum": hashlib.sha256(text).hexdigest(),
        "total_rows": len(rows),
    }
    return str(place / f"{name}.json"), log, text


def evaluation_log(env: EnvSummary, info: ExportInfo) -> dict[str, Any]:
    """Return the aggregate object of one env, without its reference to samples."""
    if env.mean_reward is None or env.success_rate is None:
        raise UsageError(
            f"env {env.env_id!r} has no rollout with a valid reward: there is no score to export"
        )
    timestamp = str(info.timestamp_s)
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": _evaluation_id(env, info),
        "evaluation_timestamp": timestamp,
        "retrieved_timestamp": timestamp,
        "source_metadata": {
            "source_name": "katgym",
            "source_type": "evaluation_run",
            "source_organization_name": info.organization,
            "evaluator_relationship": info.evaluator_relationship,
        },
        "eval_library": {"name": "katgym", "version": info.katgym_version},
        "model_info": {
            "name": info.model_id.rpartition("/")[2],
            "id": info.model_id,
            "developer": info.model_id.partition("/")[0],
            "additional_details": {
                "deployment_type": info.deployment_type,
                "model_availability": info.model_availability,
            },
        },
        "evaluation_results": [
            _reward_result(env, info, env.mean_reward),
            _success_result(env, info, env.success_rate),
            *_pass_k_results(env, info),
        ],
    }


def _reward_result(env: EnvSummary, info: ExportInfo, mean_reward: float) -> dict[str, Any]:
    result = _result(env, info, str(Headline.MEAN_REWARD), mean_reward)
    result["metric_config"] |= {
        "metric_name": "Mean reward",
        "metric_kind": "reward",
        "metric_unit": "points",
        "min_score": "-Infinity",  # the range is the env's affair, and not recorded
        "max_score": "Infinity",
    }
    result["score_details"]["uncertainty"] = _uncertainty(
        env, env.t_interval, "t interval, standard error clustered by task (CR1)", env.stderr
    )
    if env.bootstrap_interval is not None:
        method = f"percentile over tasks, {env.num_resamples} resamples, {env.level:g}"
        result["score_details"]["details"] |= {
            "bootstrap_low": repr(env.bootstrap_interval.low),
            "bootstrap_high": repr(env.bootstrap_interval.high),
            "bootstrap_method": method,
        }
    return result


def _success_result(env: EnvSummary, info: ExportInfo, success_rate: float) -> dict[str, Any]:
    result = _result(env, info, str(Headline.SUCCESS_RATE), success_rate)
    result["metric_config"] |= {
        "metric_name": "Success rate",
        "metric_kind": "pass_rate",
        "metric_parameters": _success(env),
    }
    result["score_details"]["uncertainty"] = _uncertainty(
        env, env.success_interval, "Wilson, effective sample size under clustering by task"
    )
    return result


def _pass_k_results(env: EnvSummary, info: ExportInfo) -> Iterator[dict[str, Any]]:
    for kind, sign, values in (
        ("pass_at_k", "@", env.pass_at_k),
        ("pass_hat_k", "^", env.pass_hat_k),
    ):
        for k, value in values.items():
            result = _result(env, info, kind, value, suffix=f"_{k}")
            result["metric_config"] |= {
                "metric_name": f"pass{sign}{k}",
                "metric_kind": kind,
                "metric_parameters": {"k": k, **_success(env)},
            }
            yield result


def _success(env: EnvSummary) -> dict[str, Any]:
    """Return what counts as success; without a component it is the reward's value."""
    named = {"success_component": env.success.component} if env.success.component else {}
    return {"success_threshold": env.success.threshold, **named}


def _evaluation_id(env: EnvSummary, info: ExportInfo) -> str:
    return f"{env.env_id}/{info.model_id}/{info.timestamp_s}"


def _result_id(env: EnvSummary, info: ExportInfo, metric: str) -> str:
    return f"{_evaluation_id(env, info)}#{metric}"


def _result(
    env: EnvSummary, info: ExportInfo, metric: str, score: float, *, suffix: str = ""
) -> dict[str, Any]:
    """Return one entry of `evaluation_results`, bounded by 0 and 1."""
    source = {"tasks_sha256": env.tasks_sha256, "seeds_sha256": env.seeds_sha256}
    if env.env_id in info.plugin_versions:
        source["plugin_version"] = info.plugin_versions[env.env_id]
    return {
        "evaluation_result_id": _result_id(env, info, metric + suffix),
        "evaluation_name": env.env_id,
        "source_data": {
            "dataset_name": env.env_id,
            "source_type": "other",
            "additional_details": source,
        },
        "metric_config": {
            "metric_id": metric,
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": {
            "score": score,
            "details": {
                "num_tasks": str(env.num_tasks),
                "num_scored_tasks": str(env.num_scored_tasks),
                "num_rollouts": str(env.num_rollouts),
                "num_invalid": str(env.num_invalid),
            },
        },
        "generation_config": _generation_config(info),
    }


def _uncertainty(
    env: EnvSummary, interval: Interval | None, method: str, stderr: float | None = None
) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {"num_samples": env.num_rollouts - env.num_invalid}
    if interval is not None:
        uncertainty["confidence_interval"] = {
            "lower": interval.low,
            "upper": interval.high,
            "confidence_level": env.level,
            "method": method,
        }
    if stderr is not None:
        uncertainty["standard_error"] = {"value": stderr, "method": "clustered by task (CR1)"}
    return uncertainty


def _generation_config(info: ExportInfo) -> dict[str, Any]:
    known = ("temperature", "top_p", "top_k", "max_tokens")
    arguments = {name: info.sampling[name] for name in known if name in info.sampling}
    if arguments.get("top_k") == 0:
        arguments["top_k"] = None
    others = {name: str(value) for name, value in info.sampling.items() if name not in known}
    config: dict[str, Any] = {"generation_args": arguments}
    return config | ({"additional_details": others} if others else {})


def _dump(value: object, *, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)

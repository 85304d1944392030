"""What is public: the names of `katgym` and the options of every command, as a written list.

A change here is a change for users: it belongs in the CHANGELOG.
"""

import argparse

import katgym
from katgym import rollout_store, testing
from katgym.cli.main import COMMANDS, build_parser

NAMES = """
Action Completion Component ContextLengthError DuplicateIdError EngineConfig Env EpisodeStateError
FailureKind InfrastructureError KatgymError Limits Message MissingDependencyError Policy PolicyError
ProceduralTaskSet Reward Rollout RolloutEngine RolloutGroup RolloutRequest RolloutStatus Rubric
Sampling SchedulerConfig Scorer ScoringFailure Success Task TaskSet TokenRecord Tool ToolError
ToolErrorKind ToolResult Trajectory Trust Turn UnknownNameError UsageError VersionSpan __version__
assistant check_env
hookimpl list_envs make policy register run_group run_match run_rollout scorer spec system testing
tool tools_by_name user
"""

OPTIONS = {
    "envs": "env --json",
    "plugins": "action text --json",
    "doctor": "--cluster --model --tokens --card --cards --json",
    "play": "env --seed --task --split",
    "eval": (
        "envs --policy --tasks --group-size --seed --split --concurrency --temperature"
        " --max-tokens --workers --tts --set --out --json --dry-run"
    ),
    "runs": "folder --json",
    "compare": "a b --json",
    "verify": "run_folder --set --json",
    "leaderboard": ("runs --out --json --by --set"),
    "view": (
        "folder --env --task --invalid --limit --json --serve --port --html --out --step --group"
        " --tokenizer"
    ),
    "rollouts": "subcommand",
    "check": "--badge --learn env --tasks --json",
    "sandbox": "action name --only --image --json",
    "gateway": "--upstream --store --host --port --auth --model --max-staleness"
    " --sessions-per-version --shards --set",
    "sandboxd": "--host --port --sandbox --token-file --max-sandboxes --offer-python",
    "vllm": "subcommand",
    "swe": "subcommand",
    "train": "subcommand",
    "cluster": "subcommand",
    "mcp": "subcommand",
    "demo": "--yes subcommand",
    "new": "kind name --out",
    "completion": "shell",
}
OF_PLUGINS = {"swe", "train", "cluster", "mcp", "demo"}
OF_ROLLOUTS = {
    "collect": (
        "envs --policy --tasks --group-size --seed --split --concurrency --temperature"
        " --max-tokens --set --store --json"
    ),
    "show": "store session --text --status --limit --after --json",
    "export": "store --format --out --status --min-reward",
    "stats": "store --json",
    "gc": "store --older-than --keep-expired --drop-shard --dry-run --json",
}
ROLLOUT_STORE = """
CollectReport ColumnType CorruptStoreError Exporter FailedCall RolloutStore SealReport
SessionRecord SessionStatus StoreReader StoreStatistics StoredSession as_rollout collect export
exporter record_rollout record_rollouts rollout_groups rollouts statistics stored_groups
stored_rollouts
"""


def test_the_public_names_are_the_written_ones():
    assert sorted(katgym.__all__) == sorted(NAMES.split())
    assert all(hasattr(katgym, name) for name in katgym.__all__)
    assert sorted(rollout_store.__all__) == sorted(ROLLOUT_STORE.split())
    assert all(hasattr(rollout_store, name) for name in rollout_store.__all__)
    assert testing.__all__ == ["EchoEnv", "ScriptedPolicy"]


def test_the_commands_and_their_options_are_the_written_ones():
    parser = build_parser()
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    assert set(action.choices) == {*COMMANDS, *OF_PLUGINS} == set(OPTIONS)
    check_options(action.choices, OPTIONS)
    nested = action.choices["rollouts"]._subparsers
    assert nested is not None
    check_options(nested._group_actions[0].choices, OF_ROLLOUTS)


def check_options(parsers, written):
    assert set(parsers) == set(written)
    for name, sub in parsers.items():
        found = [a.option_strings[-1] if a.option_strings else a.dest for a in sub._actions]
        assert set(found) - {"--help", "--verbose"} == set(written[name].split()), name

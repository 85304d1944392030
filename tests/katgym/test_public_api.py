"""What is public: the names of `katgym` and the options of every command, as a written list.

A change here is a change for users: it belongs in the CHANGELOG.
"""

import argparse

import katgym
from katgym.cli.main import COMMANDS, build_parser

NAMES = """
Action Completion Component ContextLengthError DuplicateIdError EngineConfig Env EpisodeStateError
FailureKind InfrastructureError KatgymError Limits Message MissingDependencyError Policy PolicyError
ProceduralTaskSet Reward Rollout RolloutEngine RolloutGroup RolloutRequest RolloutStatus Rubric
Sampling SchedulerConfig Scorer ScoringFailure Task TaskSet TokenRecord Tool ToolError ToolErrorKind
ToolResult Trajectory Turn UnknownNameError UsageError __version__ assistant check_env hookimpl
list_envs make policy register run_group run_match run_rollout scorer spec system testing tool user
"""

OPTIONS = {
    "envs": "env --json",
    "plugins": "--json",
    "doctor": "--json",
    "play": "env --seed --task --split",
    "eval": (
        "envs --policy --tasks --group-size --seed --split --concurrency --out --temperature"
        " --top-p --top-k --max-tokens --max-turns --max-episode-tokens --timeout --retries --json"
    ),
    "compare": "a b --json",
    "leaderboard": (
        "runs --out --title --by --success-threshold --json --organization --relationship"
        " --model-id"
    ),
    "view": "run_folder --env --task --invalid --limit --json",
    "check": "env --tasks --json",
    "sandbox": "action name --only --image --json",
    "sandboxd": "--host --port --backend --token-file --max-sandboxes --python",
    "swe": "subcommand",
}
OF_PLUGINS = {"swe"}


def test_the_public_names_are_the_written_ones():
    assert sorted(katgym.__all__) == sorted(NAMES.split())
    assert all(hasattr(katgym, name) for name in katgym.__all__)


def test_the_commands_and_their_options_are_the_written_ones():
    parser = build_parser()
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    assert set(action.choices) == {*COMMANDS, *OF_PLUGINS} == set(OPTIONS)
    for name, sub in action.choices.items():
        found = [a.option_strings[-1] if a.option_strings else a.dest for a in sub._actions]
        assert set(found) - {"--help", "--verbose"} == set(OPTIONS[name].split()), name

"""What a test does with each code block of the README and of the guides.

Texts that are replaced make it smaller, by the commands' own options. Not here: doing it
(`page_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from page_blocks import NotRun, Plans, Python, Run, Shown, Write

INSTALLS = NotRun("installs packages, which the test's environment has already")
VLLM = NotRun("needs an environment with vLLM")
GPU = NotRun("needs a GPU")
RAY = NotRun("needs a Ray cluster of several machines")
HARBOR = NotRun("needs katgym-plugin-harbor, which has a distribution of its own")
FACTORY = NotRun("needs katgym-plugin-swe-factory, which has a distribution of its own")
GITHUB = NotRun("needs GitHub")
OPENENV = NotRun("needs katgym-plugin-openenv, whose own tests play its server")
COUNTED = NotRun("counts steps for minutes; tests/trainer/test_fake_card.py does on a tiny model")
PART = NotRun("a part of a file, not a whole one")

FIRST_HOUR: Mapping[str, Plans] = {
    "README.md": [
        ("import asyncio", Python()),
        ("pip install", INSTALLS),
        ("Rank  Run", Shown()),
        ("test tasks", Shown()),
        (
            "katgym envs",
            Run(
                {
                    "katgym play 'katgym/TreasureHunt-v1?level=2'": "true",
                    "katgym view  ": "katgym view --html # ",
                    "--policy smollm2 --tasks 20": "--policy smollm2 --tasks 2 --max-tokens 8",
                    "--policy oracle --tasks 20": "--policy oracle --tasks 2",
                },
                prints="katgym/TreasureHunt-v1",
            ),
        ),
    ],
    "docs/guides/quickstart.md": [
        ("pip install", INSTALLS),
        ("works  what", Shown()),
        ("import katgym", Python()),
        ("import asyncio", Python()),
        ("match =", Python()),
        (
            "katgym eval 'katgym/Arithmetic-v1?level=1' --policy oracle",
            Run({"--tasks 20": "--tasks 4"}, prints="B minus A, paired by task"),
        ),
        ("A: runs/oracle", Shown()),
    ],
    "docs/guides/write-an-environment.md": [
        ("import katgym", Python("counting.py")),
        ("import asyncio", Python()),
        ("import gymnasium", Python()),
        (
            "katgym check counting.py:Counting",
            Run({"katgym check counting.py:Counting\n": "", "--tasks 20": "--tasks 4"}),
        ),
        ("class Loose(Counting)", Python()),
    ],
    "docs/guides/policies.md": [
        ("pip install", INSTALLS),
        ("await policy.update_weights", PART),
        ("katgym vllm serve", VLLM),
        ("import katgym", Python()),
    ],
    "docs/guides/write-a-plugin.md": [
        ("$ katgym new plugin", Run(prints="katgym play riddles/Riddles-v0")),
        (
            "cd katgym-plugin-riddles",
            Run(
                {
                    "make test": "python -m pip install -q --no-build-isolation --no-deps -e .",
                    "katgym check riddles/Riddles-v0\n": "",
                    "--tasks 20": "--tasks 4",
                },
                prints="riddles/Riddles-v0",
            ),
        ),
        ("[project.entry-points.katgym]", Shown()),
        ("from katgym.hookspecs import", Shown()),
    ],
    "docs/guides/evaluate.md": [
        (
            "katgym eval ENV...",
            Run(
                {
                    "ENV...": "katgym/TreasureHunt-v1",
                    "URI": "random",
                    "--tasks N --group-size G --seed S --concurrency C": "--tasks 2 --group-size 2",
                    "RUN": "runs/random",
                },
                prints="4 rollouts in runs/random",
            ),
        ),
        (
            "envs =",
            Write(
                "suite.toml",
                then="export OPENAI_API_KEY=1 EXAMPLE_API_KEY=1; katgym eval suite.toml --dry-run",
            ),
        ),
        ("model ", Shown()),
        ("$ katgym eval 'katgym/Arithmetic-v1?level=1'", Shown()),
        ("A: runs/oracle", Shown()),
        ("katgym leaderboard", Shown()),
    ],
    "docs/guides/view.md": [
        ("katgym view ", NotRun("serves until Ctrl-C; the tests of katgym.run_view start it")),
        ("katgym view RUN --html", Run({"RUN": "runs/played"}, prints="pages/index.html")),
    ],
}
"""Page -> the plans of its blocks; pages that a new user reads."""

TINY = "katgym train new-model models/tiny --envs 'katgym/Arithmetic-v1?level=1' > /dev/null\n"
"""Makes a model with random weights, in place of one that takes minutes."""
TRAIN = "katgym train sft sft.toml --out runs/sft"
"""Stands twice in a block, which shows that a run goes on."""
SMALLER = {
    "num_tasks = 256": "num_tasks = 4",
    "num_tasks = 64": "num_tasks = 4",
    "num_groups = 8": "num_groups = 2",
    "group_size = 8": "group_size = 2",
    "max_tokens = 128": "max_tokens = 8",
    "max_turns = 6": "max_turns = 2",
    "num_steps = 100": "num_steps = 1",
    "every_steps = 10\n": "every_steps = 1\n",
}

GUIDES: Mapping[str, Plans] = {
    "docs/guides/add-a-sandbox-backend.md": [
        ("from collections.abc", Python()),
        ("from katgym.sandbox import", Python()),
        ("import asyncio", Python()),
        ("@hookimpl", PART),
    ],
    "docs/guides/bridges.md": [
        ("$ katgym openenv serve", OPENENV),
        ("$ curl -s -X POST localhost:8000/reset", OPENENV),
    ],
    "docs/guides/cluster-plan.md": [
        ("$ katgym cluster plan rl.toml", Run(prints="bottleneck")),
        (
            "katgym cluster plan rl.toml --set turns=30",
            Run(
                {
                    "copies=8": "copies=2",
                    "num_groups=64": "num_groups=4",
                    "max_concurrency=4096": "max_concurrency=8",
                },
                prints="bottleneck",
            ),
        ),
    ],
    "docs/guides/many-ranks.md": [
        ("# train.py", Python("train.py")),
        ("torchrun", NotRun("four processes of torch: tests/trainer/ranks starts such")),
        ("[trainer.ranks]", PART),
        ("[cluster]", PART),
        ("katgym train rl", RAY),
        ("error: Ray started", Shown()),
    ],
    "docs/guides/many-workers.md": [
        (
            "katgym eval 'katgym/TreasureHunt-v1?level=2'",
            Run(
                {"--tasks 100 --workers 4": "--tasks 4 --workers 2"},
                prints="4 rollouts in runs/random",
            ),
        ),
        ("ray start", RAY),
        ("[policy]", PART),
        ("[policy]", PART),
        ("$ katgym cluster status", RAY),
        ("import asyncio", Python()),
    ],
    "docs/guides/record-agents.md": [
        ("pip install", INSTALLS),
        ("$ katgym vllm serve", VLLM),
        ("$ export KATGYM_GATEWAY_KEY", VLLM),
        ("import sys", VLLM),
        ("import asyncio", VLLM),
        (
            "$ katgym rollouts show rollouts",
            Run({"France-0 --text": "--limit 1 --text"}, prints="sessions shown"),
        ),
        ("$ katgym rollouts export rollouts --format verl", Run(prints="rows to rows.parquet")),
        ("$ katgym rollouts export rollouts --format rollouts", Run(prints="to rollouts.jsonl")),
        (
            "[model]",
            Write("rft.toml", {'"smollm2"': '"models/tiny"', "num_epochs = 2": "num_epochs = 1"}),
        ),
        (
            "$ katgym train rft rft.toml",
            Run({"--out": "--set data.min_reward=0.0 --out"}, prints="runs/rft/model"),
        ),
        ("pip install mini-swe-agent", VLLM),
    ],
    "docs/guides/swe-from-pull-requests.md": [
        ("$ katgym swe from-prs", FACTORY),
        ("R=python-humanize", GITHUB),
        ("min_stars", PART),
        ("{", PART),
    ],
    "docs/guides/harbor.md": [
        ("pip install", INSTALLS),
        ("my-tasks/", Shown()),
        ("katgym harbor list", HARBOR),
        ("task         split", Shown()),
        ("katgym eval 'harbor/Tasks-v0?path=my-tasks&only_playable", HARBOR),
        ("env              headline", Shown()),
        ("for task in my-tasks", HARBOR),
        ("katgym harbor export", HARBOR),
        ("16 tasks in", Shown()),
        ("katgym rollouts export STORE", NotRun("names no store")),
        ("[data]", PART),
    ],
    "docs/guides/swe-tasks.md": [
        ("pip install", INSTALLS),
        ("$ katgym swe show my-tasks", FACTORY),
        ("$ katgym swe checkout my-tasks", FACTORY),
        (
            "katgym eval 'katgym/SWE-v0?tasks=toy'",
            Run(
                {
                    "--tasks 5": "--tasks 2",
                    "katgym eval 'katgym/SWE-v0?split=test' --policy"
                    " 'vllm:http://localhost:8000#my-model' --out runs/mine\n": "",
                    "runs/mine": "runs/oracle",
                }
            ),
        ),
        ("import asyncio", Python()),
        ("katgym swe make", FACTORY),
        ("$ katgym swe check", FACTORY),
        ("katgym swe import", FACTORY),
    ],
    "docs/guides/train.md": [
        ("pip install", Shown()),
        (
            "[model]",
            Write(
                "sft.toml",
                {
                    '"smollm2" #': '"models/tiny" #',
                    "num_tasks = 64": "num_tasks = 8",
                    "num_steps = 12": "num_steps = 2",
                },
            ),
        ),
        ("$ katgym train sft sft.toml", Run({f"\n{TRAIN}": ""}, prints="2 of 2 steps")),
        (
            "$ katgym eval",
            Run(
                {"hf:smollm2": "random", "--tasks 8": "--tasks 2"},
                prints="B minus A, paired by task",
            ),
        ),
        ("$ katgym train plot runs/sft", Run(prints="runs/sft/plots/overview.png")),
        (
            "$ katgym rollouts collect",
            Run({"smollm2": "hf:models/tiny", "--max-tokens 48": "--max-tokens 8"}),
        ),
        (
            "[model]",
            Write("store.toml", {'"smollm2"': '"models/tiny"', "num_steps = 3": "num_steps = 1"}),
        ),
        ("$ katgym train sft store.toml", Run(prints="1 of 1 steps")),
        ("$ katgym train new-model", Run({"models/tiny": "models/other"}, prints="parameters")),
        ("[[track]]", PART),
    ],
    "docs/guides/train-agents.md": [
        ("agents -->", Shown()),
        ("pip install", INSTALLS),
        ("$ katgym train new-model", VLLM),
        ("$ export KATGYM_GATEWAY_KEY", VLLM),
        ("import openai", VLLM),
        ("import asyncio", VLLM),
        ("[model]", VLLM),
        ("$ python play.py", VLLM),
        ("KATGYM_AGENTS=", VLLM),
        ("step 1:", Shown()),
        ("katgym gateway", VLLM),
        ("[policy]", PART),
    ],
    "docs/guides/train-lora.md": [
        ("pip install", GPU),
        ("[model]", Write("lora.toml")),
        ("[[policy.servers]]", PART),
        ("$ katgym doctor --model", COUNTED),
        (
            "[model]",
            Write(
                "tiny.toml",
                {
                    "num_tasks = 400": "num_tasks = 8",
                    "num_steps = 80": "num_steps = 2",
                    "batch_rollouts = 16": "batch_rollouts = 4",
                },
            ),
        ),
        ("$ katgym train new-model", Run(prints="2 of 2 steps")),
        (
            "$ katgym train rl lora.toml",
            Run(
                {
                    "--preset cpu": "--preset cpu --steps 1 --set evaluate.num_tasks=2"
                    " --set rollouts.num_groups=2 --set rollouts.group_size=2"
                },
                prints="runs/lora-cpu/model",
            ),
        ),
    ],
    "docs/guides/train-rl.md": [
        ("pip install", Shown()),
        (
            "[model]",
            Write("rl.toml", SMALLER, then=f"{TINY}katgym train rl rl.toml --out runs/rl"),
        ),
        ("[policy]", PART),
        (
            "[model]",
            Write(
                "stages.toml",
                {
                    "num_tasks = 300": "num_tasks = 8",
                    "num_epochs = 3": "num_epochs = 1",
                    "[stage.train]\nnum_steps = 100": "num_tasks = 4\n[stage.policy]\n"
                    "max_tokens = 8\n[stage.rollouts]\nnum_groups = 2\ngroup_size = 2\n"
                    "max_turns = 2\n[stage.train]\nnum_steps = 1",
                },
                then="katgym train rl stages.toml --out runs/stages",
            ),
        ),
        ("[rewards]", PART),
        ("[[teachers]]", PART),
    ],
    "docs/guides/train-tiny.md": [
        ("pip install", NotRun("tests/trainer/test_training_demo.py runs the demo")),
        (
            "katgym train new-model",
            Run(
                {
                    "--tasks 2400": "--tasks 4",
                    "katgym train sft runs/demo-train/sft.toml --out"
                    " runs/demo-train/expressions/sft\n": "",
                },
                prints="4 rollouts in runs/demo-train/expressions/teachers/level-7-one-by-one",
            ),
        ),
        ("katgym train rl", NotRun("needs what the demo trained")),
        ("before and after", Shown()),
        ("katgym train plot", NotRun("needs what the demo trained")),
        ("katgym train rl", NotRun("needs what the demo trained")),
        ("before and after", Shown()),
    ],
    "docs/guides/verify.md": [
        ("katgym verify RUN", Run({"RUN": "runs/played"}, prints="verified")),
        ("check ", Shown()),
        ("episodes ", Shown()),
    ],
    "docs/guides/vllm.md": [
        ("katgym vllm install", VLLM),
        ("$ katgym vllm serve smollm2", VLLM),
        ("$ katgym vllm serve ./model", VLLM),
        ("import katgym", Python()),
        ("$ katgym vllm status", VLLM),
        ("katgym vllm serve Qwen", GPU),
        ("from pathlib import Path", Python()),
        ("[policy]", PART),
        ("Generated(", Shown()),
    ],
}
"""The other guides; those of training have a model with random weights, and take a few steps."""

PLAYED = "katgym eval katgym/TreasureHunt-v1 --policy random --tasks 2 --out runs/played"
BEFORE: Mapping[str, str] = {
    "docs/guides/view.md": PLAYED,
    "docs/guides/verify.md": PLAYED.replace("random", "oracle"),
    "docs/guides/train.md": TINY,
    "docs/guides/record-agents.md": f"{TINY}katgym rollouts collect 'katgym/Arithmetic-v1?level=1'"
    " --policy hf:models/tiny --tasks 2 --group-size 2 --max-tokens 8 --store rollouts",
    "docs/guides/cluster-plan.md": f"""{TINY}cat > rl.toml << 'END'
[model]
path = "models/tiny"
[[envs]]
id = "katgym/Arithmetic-v1"
[policy]
uri = "vllm"
[rollouts]
num_groups = 2
group_size = 2
END""",
}
"""Page -> a script that makes what the page begins with."""

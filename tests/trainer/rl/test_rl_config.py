"""The file of `katgym train rl`: what it may say, what is wrong in it; the files that come with it.

Not here: stages (`test_pipeline.py`).
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from katgym.config.toml_files import read_toml
from katgym.errors import UsageError
from katgym.vllm_server.config import server_command
from katgym_trainer.advantages.reward_shaping import RewardShaping
from katgym_trainer.config.frozen_models import ReferenceConfig, TeacherConfig
from katgym_trainer.config.pipeline_config import PipelineConfig
from katgym_trainer.config.presets import PRESETS
from katgym_trainer.config.rl_config import RlConfig, StaleGroups, SyncKind, TaskChoice
from katgym_trainer.config.server_config import ServerConfig, ServerTag, sharing_devices
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
from katgym_trainer.rl.servers.load_balancing import Signal
from katgym_trainer.rl.servers.server_role import ServerRole, server_config
from katgym_trainer.rollouts.turn_errors import TurnError

LEAST = '[model]\npath = "m"\n[[envs]]\nid = "katgym/Arithmetic-v1"\n'


def parse(more: str = "", *, num_steps: int | None = None, least: str = LEAST) -> RlConfig:
    return RlConfig.of(tomllib.loads(least + more), name="rl.toml", num_steps=num_steps)


def test_the_least_file_has_sensible_defaults() -> None:
    config = parse()
    assert [env.lessons for env in config.envs] == [[("katgym/Arithmetic-v1", {})]]
    assert config.rollouts.choice is TaskChoice.DIFFICULTY
    assert (config.rollouts.num_groups, config.rollouts.group_size) == (8, 8)
    assert (config.loop.algorithm, config.loop.num_steps) == ("grpo", 100)
    assert (config.policy.uri, config.policy.sync) == ("", SyncKind.AUTO)
    assert config.checkpoint.every_steps == 10
    assert config.trainer_config().temperature == 1.0


def test_every_section_is_read() -> None:
    config = parse(
        """
weight = 2.0
curriculum = [{ level = 1 }, { level = 2 }]
[[envs]]
id = "katgym/TreasureHunt-v1?level=2"
split = "validation"
[policy]
uri = "vllm:http://host:1#adapter"
temperature = 0.7
sync = "lora"
[rollouts]
max_staleness = 2
stale = "drop"
max_turns = 5
timeout_s = 60.0
[train]
algorithm = "dapo"
lora_rank = 8
schedule = "linear"
learning_rate = 1e-5
loss = { clip_high = 0.3 }
[evaluate]
every_steps = 5
envs = ["katgym/Arithmetic-v1?level=9"]
[checkpoint]
max_checkpoints = 1
[[track]]
name = "tensorboard"
""",
        num_steps=50,
    )
    assert config.envs[0].lessons[1] == ("katgym/Arithmetic-v1", {"level": 2})
    assert config.envs[1].lessons == [("katgym/TreasureHunt-v1", {"level": 2})]
    assert config.rollouts.stale is StaleGroups.DROP
    assert (config.rollouts.limits.max_turns, config.rollouts.limits.timeout_s) == (5, 60.0)
    trainer = config.trainer_config()
    assert (trainer.temperature, trainer.num_steps, trainer.lora_rank) == (0.7, 50, 8)
    assert trainer.loss == {"clip_high": 0.3}
    assert config.evaluate.envs == ("katgym/Arithmetic-v1?level=9",)
    assert (config.checkpoint.every_steps, config.checkpoint.max_checkpoints) == (10, 1)
    assert config.track[0].name == "tensorboard"


def test_rewards_and_reference_are_read() -> None:
    config = parse(
        "[rewards]\ntruncated = 'masked'\nloss_masks = ['unparsable']\n"
        "overlong_buffer_tokens = 64\n[rollouts]\nmax_episode_tokens = 512\n"
        "[reference]\n[train]\nloss = {kl_coef = 0.1}\n"
    )
    assert config.reference == ReferenceConfig(path="")
    assert config.rewards.masks().truncated_rollouts
    assert config.rewards.masks().loss == {TurnError.UNPARSABLE}
    assert config.rewards.shaping(512) == RewardShaping(max_tokens=512, buffer_tokens=64)
    assert config.identity() != parse("[train]\nloss = {kl_coef = 0.1}\n[reference]").identity()
    parse("[train]\nloss = {kl_coef = 0.1}\nlora_rank = 4")
    parse("[train]\nshould_split = true\n[policy]\nmax_context_tokens = 9000")


def test_teachers_are_read_and_part_of_what_a_run_is() -> None:
    more = (
        "[[envs]]\nid = 'katgym/TreasureHunt-v1?level=2'\n[[teachers]]\npath = 't'\n"
        "envs = ['katgym/Arithmetic-v1']\nreward_weight = 0.0\n[[teachers]]\npath = 'u'\n"
    )
    config = parse(more)
    assert config.teachers == (
        TeacherConfig(path="t", envs=("katgym/Arithmetic-v1",), reward_weight=0.0),
        TeacherConfig(path="u", weight=1.0, reward_weight=1.0),
    )
    assert config.identity() != parse(more + "weight = 0.5").identity()


def test_what_may_change_in_a_continued_run_is_not_its_identity() -> None:
    assert parse("[rollouts]\nmax_concurrency = 3").identity() == parse(num_steps=7).identity()
    assert parse("[evaluate]\nevery_steps = 3").identity() == parse().identity()
    for more in ("[rollouts]\ngroup_size = 4", "[train]\nseed = 1", "weight = 2.0"):
        assert parse(more).identity() != parse().identity()


TEACHER = "[[teachers]]\npath = 't'\n"
OVERLONG = "[rewards]\noverlong_buffer_tokens = 9\n"
VLLM = "[policy]\nuri = 'vllm'\n"
SERVER = VLLM + "[[policy.servers]]\n"
THERE = SERVER + "url = 'http://h:1#n'\n"
WRONG = [
    ("[rollout]\n", r"unknown section of rl.toml 'rollout'. Did you mean 'rollouts'"),
    ("[rollouts]\ngroup_sise = 4", r"key of rl.toml \[rollouts\] 'group_sise'. Did you mean"),
    ("[train]\nlearning_rat = 1", r"key of rl.toml \[train\] 'learning_rat'. Did you mean"),
    ("[train]\ntemperature = 1.0", r"key of rl.toml \[train\] 'temperature'"),
    ("[train]\nalgorithm = 'grpoo'", r"\[train\]: unknown algorithm 'grpoo'. Did you mean"),
    ("[train]\nalgorithm = 'sft'", r"'sft' makes no advantages of rewards; .* train sft"),
    ("[train]\nmomentum = 0.5", r"momentum=0.5 changes nothing; it needs optimizer='muon'"),
    ("[train]\nloss = {kl_coef = 0.1}", r"add a section \[reference\] .* or train adapters"),
    ("[reference]\npath = 'm'", r"\[reference\] changes nothing without .* loss.kl_coef"),
    ("[rollouts]\ngroup_size = 1", r"group_size is an int >= 2, got 1"),
    ("[rollouts]\ngroup_size = 'a'", r"\[rollouts\] group_size: Expected `int`, got `str`"),
    ("[rollouts]\nstale = 'drop'", r"stale = 'drop' changes nothing with max_staleness = 0"),
    ("[rollouts]\nstale = 'dorp'", r"\[rollouts\] stale 'dorp'. Did you mean 'drop'"),
    ("[rollouts]\nchoice = 'uniform'\nfloor = 0.1", r"change nothing with choice = 'uniform'"),
    ("[rollouts]\nmax_offered = 3", r"max_offered is 0 or at least num_groups \(8\), got 3"),
    ("[policy]\nuri = 'openai:http://x#y'", r"weights get to no other policy"),
    ("[policy]\nsync = 'lora'", r"sync = 'lora' changes nothing without a uri"),
    (
        "[policy]\nuri = 'vllm:http://x#y'\nsync = 'lora'",
        r"\[policy\] sync = 'lora' needs lora_rank >= 1, got 0",
    ),
    ("[policy]\nserver_python = 'x'", r"of a server that the run starts: uri = 'vllm'"),
    (
        VLLM + "server_args = ['--enable-return-routed-experts']\n[train]\nshould_compile = true",
        r"should_compile: compiled layers do not replay the experts",
    ),
    ("[policy]\nuri = 'vllm:host#n'", r"\[policy\]: url is URL#NAME, .* got 'host#n'"),
    ("[policy]\nmax_tokens = 5000", r"leaves no room for a prompt in max_context_tokens"),
    ("[policy]\nmax_context_tokens = 9000", r"is more than \[train\] max_tokens \(8192\)"),
    ("[policy]\ntemperature = 0.0", r"temperature is a number > 0, got 0.0"),
    ("[evaluate]\nattempts = 0", r"attempts is an int >= 1, got 0"),
    ("[[envs]]\nid = 'katgym/Arithmetic-v1'", r"'katgym/Arithmetic-v1' is there twice"),
    ("[[envs]]\nweight = 1.0", r"\[\[envs\]\] 1 has no 'id'"),
    ("[[envs]]\nid = 'a/B-v0'\nweight = -1.0", r"weight is a number > 0, got -1.0"),
    ("[[envs]]\nid = 'a/B-v0'\nadvance_at = 0.5", r"advance_at changes nothing for 'a/B-v0'"),
    ("[[teachers]]\nweight = 1.0", r"\[\[teachers\]\] 0 has no 'path'"),
    (TEACHER + "weight = 0.0", r"weight is a number > 0, got 0.0"),
    (
        TEACHER + "envs = ['katgym/Arithmetic-v2']",
        r"unknown env of \[\[teachers\]\] 0 'katgym/Arithmetic-v2'. Did you mean",
    ),
    (TEACHER + TEACHER.replace("'t'", "'u'"), r"two teachers name no envs; one"),
    (
        TEACHER + "envs = ['katgym/Arithmetic-v1', 'katgym/Arithmetic-v1']",
        r"env 'katgym/Arithmetic-v1' has two teachers; leave it out of one",
    ),
    (
        TEACHER + "reward_weight = 0\n[rollouts]\nmax_offered = 9",
        r"reward_weight = 0 looks at no reward, and \[rollouts\] max_offered refuses groups",
    ),
    (TEACHER + "[train]\nalgorithm = 'gspo'", r"\[train\]: teachers give .* which loss 'gspo'"),
    ("[rewards]\noverlong_factor = 0.5", r"changes nothing without overlong_buffer_tokens"),
    (OVERLONG, r"max_episode_tokens, which is None"),
    (
        OVERLONG + "[rollouts]\nmax_episode_tokens = 8",
        r"overlong_buffer_tokens = 9 are the last of .* max_episode_tokens, which is 8",
    ),
    ("[rewards]\ntruncated = 'nul'", r"\[rewards\] truncated 'nul'"),
    ("[rewards]\nloss_masks = ['lop']", r"\[rewards\] loss_masks 'lop'. Did you mean 'loop'"),
    (
        "[rewards]\nloss_masks = ['loop']\nadvantage_masks = ['loop']",
        r"'loop' is in loss_masks and in advantage_masks",
    ),
]
WRONG_SERVERS = [
    (VLLM + "servers = 2", r"\[policy\] servers: Expected `array`, got `int`"),
    (VLLM + "servers = [2]", r"servers.0 is a table of keys and values, got 2"),
    (SERVER + "tags = ['trian']", r"servers.0 tags 'trian'. Did you mean 'train'"),
    (SERVER + "tags = ['train']", r"servers.0: tags = \['train'\] has no 'rollout'"),
    (SERVER + "tags = []", r"tags = \[\] has no 'rollout'"),
    (SERVER + "tags = ['rollout', 'rollout']", r"tag 'rollout' is there twice"),
    (SERVER + "tags = 'rollout'", r"servers.0 tags"),
    (SERVER + "gpus = 1\ntags = ['rolout']", r"tags.*'rolout'"),
    (SERVER + "device = '0'", r"key of rl.toml \[policy\] servers.0 'device'. Did you mean"),
    (SERVER + "devices = 0", r"servers.0 devices: Expected `str`, got `int`"),
    (SERVER + "max_concurrency = -1", r"servers.0.*max_concurrency"),
    (SERVER + "count = 0", r"servers.0.*count is an int >= 1, got 0"),
    (SERVER + "count = 3", r"count = 3 is of servers that Ray places: say gpus, of each"),
    (SERVER + "gpus = -1", r"servers.0.*gpus is an int >= 0.*, got -1"),
    (SERVER + "gpus = 1.5", r"servers.0 gpus: Expected .*, got 1.5"),
    (SERVER + "gpus = 1", r"gpus = 1 is of a server that Ray places: add a section \[cluster\]"),
    (SERVER + "gpus = 1\ndevices = '0'", r"Ray chooses the devices of a server that it places"),
    (SERVER + "gpus = 1\ntags = ['rollout', 'train']", r"gpus = 1 and the tag 'train'"),
    (SERVER + "gpus = 1\n[cluster]\npatience_s = 0.0", r"patience_s is > 0, got 0.0"),
    (SERVER + "[cluster]", r"without \[\[policy.servers\]\] that have gpus: leave it out"),
    (
        VLLM + "sync = 'ipc'\n[[policy.servers]]\ngpus = 1\n[cluster]",
        r"sync = 'ipc' hands over memory of the trainer's own GPUs",
    ),
    (SERVER + "url = 'http://h:1'", r"url is URL#NAME, as in .* got 'http://h:1'"),
    (SERVER + "url = 'h:1#n'", r"url is URL#NAME"),
    (THERE + "gpus = 1", r"gpus = 1 .*; there is one at http://h:1#n"),
    (THERE + "devices = '1'", r"devices = '1' is of a server .*; the one at http://h:1#n has"),
    (THERE + "max_concurrency = 9", r"give that of http://h:1#n .*: ...\?max_concurrency=9"),
    (
        THERE + "[[policy.servers]]\nurl = 'http://h:1/v1#m'",
        r"url 'http://h:1' is there twice",
    ),
    (
        THERE.replace("'vllm'\n", "'vllm'\nserver_args = ['-v']\n"),
        r"server_args and server_python are of a server that the run starts",
    ),
    (
        "[[policy.servers]]\ndevices = '0'",
        r"servers are those of uri = 'vllm', and there is no",
    ),
    (
        "[policy]\nuri = 'vllm:http://h:1#n'\n[[policy.servers]]\ndevices = '0'",
        r"got 'vllm:http://h:1#n': give that one a section with url = 'http://h:1#n'",
    ),
    (
        VLLM + "gateway = 'http://g:2'\n[[policy.servers]]\ndevices = '0'",
        r"gateway = 'http://g:2' stands in front of a server.*with url for each",
    ),
    (
        "[policy]\ngateway = 'http://g:2'\n[rollouts]\nstore = 's'",
        r"gateway = 'http://g:2' stands in front of a server",
    ),
    (
        "[policy]\nuri = 'vllm:http://h:1#n'\ngateway = 'http://g:2'",
        r"gateway changes nothing without \[rollouts\] store",
    ),
    (
        "[policy]\nuri = 'vllm:http://h:1#n'\ngateway = 'g:2'\n[rollouts]\nstore = 's'",
        r"'g:2' is no URL",
    ),
]
INCOMPLETE = [
    ("[[envs]]\nid = 'a/B-v0'", r"rl.toml has no section \[model\]"),
    ("[model]\npath = 'm'", r"rl.toml has no section \[\[envs\]\]"),
    ("[model]\npath = 'm'\n[envs]\nid = 'a/B-v0'", r"is a list of tables, each begun by"),
    (f"policy = 3\n{LEAST}", r"rl.toml \[policy\] is a table of keys and values, got"),
]


def test_what_is_wrong_is_named_with_its_section(subtests: pytest.Subtests) -> None:
    files = [(LEAST + more, text) for more, text in (*WRONG, *WRONG_SERVERS)]
    for file, text in (*files, *INCOMPLETE):
        with subtests.test(file), pytest.raises(UsageError, match=text):
            parse(least=file)


def test_servers_stand_where_their_tags_say() -> None:
    assert parse().policy.placed == ()
    assert parse("[policy]\nuri = 'vllm'").policy.placed == (ServerConfig(),)
    there = parse("[policy]\nuri = 'vllm:http://h:1/v1/#n?timeout_s=5'").policy.placed[0]
    assert (there.place, there.name, there.is_shared) == ("http://h:1", "n", False)
    config = parse(
        "[policy]\nuri = 'vllm'\nserver_args = ['-v']\n"
        "[[policy.servers]]\ntags = ['rollout', 'train']\ndevices = '0'\n"
        "[[policy.servers]]\nurl = 'http://h:1#tiny'\n"
    )
    assert config.policy.placed == (
        ServerConfig(tags=(ServerTag.ROLLOUT, ServerTag.TRAIN), devices="0"),
        ServerConfig(url="http://h:1#tiny"),
    )
    assert [where.is_shared for where in config.policy.placed] == [True, False]
    assert config.identity() == parse("[policy]\nuri = 'vllm'").identity()


def test_a_section_with_a_count_is_so_many_servers_each_with_its_gpus() -> None:
    more = "gpus = 2\ncount = 3\nmax_concurrency = 9\n[[policy.servers]]\nurl = 'http://h:1#n'"
    config = parse(f"{SERVER}{more}\n[cluster]\naddress = 'local'")
    placed = config.policy.placed
    assert [(where.gpus, where.max_concurrency) for where in placed] == [(2, 9)] * 3 + [(None, 0)]
    where = placed[1]
    signal, paths = Signal(), {"folder": Path("w"), "shared_file": None, "log_file": Path("l")}
    role = ServerRole(
        config=config, where=where, number=1, lora_rank=0, dtype="bfloat16", changed=signal, **paths
    )
    there = server_config(role)
    command = server_command(there, Path("/venv/bin/python"), 80, is_guarded=True)
    assert there.device == "gpu" and there.log_file == Path.cwd() / "l"
    assert command[command.index("--tensor-parallel-size") + 1] == "2"
    assert command[-2:] == ["--middleware", "bearer_guard.BearerGuard"]
    on_cpu = dataclasses.replace(role, where=dataclasses.replace(where, gpus=0))
    assert server_config(on_cpu).device == "cpu"
    assert "--tensor-parallel-size" not in server_config(on_cpu).extra_args


def test_servers_that_may_share_a_device_start_in_turn(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[dict[str, Any]], list[list[int]]]] = [
        ([{"devices": "0"}, {"devices": "1"}], [[0], [1]]),
        ([{"devices": "0"}, {"devices": "1"}, {"devices": "0, 2"}], [[0, 2], [1]]),
        ([{"devices": "0"}, {"devices": "1"}, {"devices": "1,0"}], [[0, 1, 2]]),
        ([{"devices": "0"}, {}], [[0, 1]]),
        ([{"url": "http://a:1#m"}, {}, {"url": "http://b:1#m"}], [[0], [1], [2]]),
        ([{"gpus": 1}, {}, {"gpus": 0}, {"devices": "0"}], [[0], [1, 3], [2]]),
    ]
    for servers, groups in cases:
        with subtests.test(str(servers)):
            found = sharing_devices([ServerConfig(**server) for server in servers])
            assert sorted(sorted(places) for places in found) == groups


def test_a_run_is_told_apart_by_the_text_of_its_file_of_envs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    versions = []
    for text in ("import katgym\nMine = katgym.testing.EchoEnv\n", "Mine = int\n"):
        file.write_text(text)
        least = LEAST.replace("katgym/Arithmetic-v1", f"{file}:Mine?max_turns=2")
        (version,) = parse(least=least).identity()["env_files"].values()
        versions.append(version)
    assert versions[0].startswith("sha256:") and versions[0] != versions[1]
    assert "env_files" not in parse().identity()


EXAMPLES = Path(__file__).parents[3] / "trainer/examples"


def test_every_example_is_a_run(subtests: pytest.Subtests) -> None:
    paths = sorted(EXAMPLES.glob("*.toml"))
    assert len(paths) > 5
    for path in paths:
        raw = tomllib.loads(path.read_text())
        with subtests.test(path.name):
            if path.stem == "stages":
                config = PipelineConfig.of(raw, name=path.name)
                assert [stage.kind for stage in config.stages] == ["sft", "rl"]
            elif path.stem in ("rl", "lora"):
                assert len(RlConfig.of(raw, name=path.name).envs[0].lessons) == 3
            elif path.stem == "distil":
                teachers = RlConfig.of(raw, name=path.name).teachers
                assert [teacher.envs for teacher in teachers] == [("katgym/TreasureHunt-v1",), ()]
            else:
                kind = TrainKind(path.stem)
                assert TrainRunConfig.of(raw, kind=kind, name=path.name).kind is kind


def test_presets_fit_the_file_of_adapters_which_the_guide_shows_to_a_machine() -> None:
    file, found = EXAMPLES / "lora.toml", {}
    for preset in PRESETS:
        config = RlConfig.of(read_toml(file, PRESETS[preset]), name=file.name)
        policy, trained = config.policy, config.trainer_config()
        assert trained.lora_rank == 32
        found[preset] = (policy.uri, policy.server_args, trained.dtype, trained.max_tokens)
    assert found == {
        "cpu": ("", (), "float32", 4096),
        "gpu-24": ("vllm", ("--gpu-memory-utilization", "0.45"), "bfloat16", 8192),
        "gpu-80": ("vllm", ("--gpu-memory-utilization", "0.4"), "bfloat16", 16384),
    }
    page = (EXAMPLES.parents[1] / "docs/guides/train-lora.md").read_text()
    shown = page.partition("```toml\n")[2].partition("```")[0]
    assert "".join(file.read_text().splitlines(keepends=True)[3:]) == shown

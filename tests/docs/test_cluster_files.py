"""Files of docs/cluster: read by our own parser, YAML's and bash; scripts run with stand-ins."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from waiting import wait_until

from katgym_trainer.config.rl_config import RlConfig

FOLDER = Path(__file__).parents[2] / "docs" / "cluster"


def stand_ins(folder: Path, **programs: str) -> dict[str, str]:
    """Write programs that note their arguments and then do what is told; return the environment."""
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "activate").write_text("")
    for name, body in programs.items():
        file = bin_folder / name
        note = f'printf "%s\\n" "{name} $*" >> {shlex.quote(str(folder / "log"))}\n'
        file.write_text(f"#!/bin/bash\n{note}{body}\n")
        file.chmod(0o755)
    return {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}


def test_the_run_is_one_that_katgym_reads() -> None:
    config = RlConfig.read(FOLDER / "rl.toml")
    assert config.cluster is not None
    assert config.cluster.trainer_ranks + sum(s.count for s in config.policy.servers) == 16


def test_scripts_are_bash() -> None:
    for name in ("slurm.sbatch", "ssh.sh"):
        subprocess.run(["bash", "-n", FOLDER / name], check=True)


def test_a_ray_job_has_as_many_gpus_as_ranks_and_shares_its_folder() -> None:
    job = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    (workers,) = spec["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    gpus = workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus == 16
    for template in (spec["headGroupSpec"]["template"], workers["template"]):
        (container,) = template["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["shared"] == "/shared"
        assert {volume["name"] for volume in template["spec"]["volumes"]} == set(mounts)


def test_a_sky_task_runs_bash() -> None:
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    assert task["num_nodes"] == 2
    for name in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[name], text=True, check=True)
    assert task["envs"]["PORT"] != "6380"


def test_ssh_starts_all_hosts_runs_on_the_first_and_stops_all(tmp_path: Path) -> None:
    env = stand_ins(
        tmp_path, ray="", katgym="exit 7", ssh='while [[ $1 == -* ]]; do [ "$1" = -o ] && shift;'
        ' shift; done; shift; exec bash -c "$*"',
    )  # fmt: skip
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("# first the head\n10.0.0.7\n\n10.0.0.8\n")
    command = [FOLDER / "ssh.sh", hosts, tmp_path, "train", "rl", "a b.toml"]
    assert subprocess.run(command, env=env).returncode == 7
    log = [line for line in (tmp_path / "log").read_text().splitlines() if line[:3] != "ssh"]
    assert log == [
        "ray start --head --node-ip-address=10.0.0.7 --port=6379",
        "ray start --address=10.0.0.7:6379",
        "katgym train rl a b.toml",
        "ray stop",
        "ray stop",
    ]
    assert subprocess.run([FOLDER / "ssh.sh"], env=env, capture_output=True).returncode == 2


@pytest.mark.parametrize(("signaled", "code"), [(True, 143), (False, 0)])
def test_a_slurm_job_that_is_told_to_end_saves_and_is_queued_again(
    tmp_path: Path, signaled: bool, code: int
) -> None:
    log = tmp_path / "log"
    # Ray is noted in the background; a signal has to find the trap.
    train = f"until [ $(grep -c '^ray start' {log}) = 2 ]; do sleep 0.1; done"
    if signaled:
        train = f"trap 'exit 143' TERM; {train}; echo trapped >> {log}; while :; do sleep 0.1; done"
    env = stand_ins(
        tmp_path, ray="", katgym=train, scontrol="", getent="echo 10.0.0.7 STREAM",
        srun='while [[ $1 == -* ]]; do shift; done; exec "$@"',
    )  # fmt: skip
    env |= {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "2"}
    job = subprocess.Popen(["bash", FOLDER / "slurm.sbatch"], env=env, cwd=tmp_path)
    if signaled:
        wait_until(lambda: log.exists() and "trapped" in log.read_text(), "the trap")
        job.send_signal(signal.SIGTERM)
    assert job.wait(300) == code
    told = log.read_text()
    assert "katgym train rl rl.toml --out runs/rl --set cluster.address=10.0.0.7:6379" in told
    assert "ray start --head --node-ip-address=10.0.0.7 --port=6379 --block" in told
    assert "ray start --address 10.0.0.7:6379 --block" in told
    assert ("scontrol requeue 5" in told) == signaled

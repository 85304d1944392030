"""The Docker Engine, asked through its SDK in threads of a fixed number.

The one module that imports `docker`. Every error of it becomes one of katgym's here. Not here: what
the container is like (`settings.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from katgym.errors import MissingDependencyError, UsageError
from katgym.sandbox.base import SandboxError, SandboxUnavailableError
from katgym.sandbox.docker_engine.settings import EngineFacts

try:
    import docker
    from docker import errors
    from requests import exceptions
except ImportError as error:
    raise MissingDependencyError(
        "sandbox backend 'docker' needs the Docker SDK: pip install 'katgym[swe]'"
    ) from error

NO_SCORE = "an agent that exhausts a container's memory may end its supervisor, too"
T = TypeVar("T")
_log = logging.getLogger(__name__)
_TIMEOUT_S = 120
_LOCAL = "unix:///var/run/docker.sock"
_NO_ENGINE = (
    "no Docker Engine answers at {url}: {error}. Start one (`dockerd` as root, or the service"
    " `docker`), set DOCKER_HOST to one that runs, or use sandbox backend 'local'"
)


class Engine:
    """A connection to one engine, shared by all sandboxes of a backend."""

    def __init__(self, *, base_url: str | None, max_concurrency: int) -> None:
        """Connect; blocks. `SandboxUnavailableError` if no engine answers."""
        self.url = base_url or docker.utils.kwargs_from_env().get("base_url") or _LOCAL
        self.has_oom_score = True
        """Whether supervisors can be kept from being killed first; known after the first start."""
        self._random = random.SystemRandom()
        try:
            # The SDK would leak a socket if nobody listened.
            if self.url.startswith("unix://"):
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(_TIMEOUT_S)
                    sock.connect("/" + self.url.removeprefix("unix://").lstrip("/"))
            if base_url is None:
                client = docker.from_env(timeout=_TIMEOUT_S, max_pool_size=max_concurrency)
            else:
                client = docker.DockerClient(
                    base_url=base_url, timeout=_TIMEOUT_S, max_pool_size=max_concurrency
                )
            self._api = client.api
            info = self._api.info()
            security = " ".join(info.get("SecurityOptions") or ())
            self.facts = EngineFacts(
                version=str(info.get("ServerVersion")),
                num_cpus=int(info.get("NCPU") or 1),
                has_memory_limit=bool(info.get("MemoryLimit")),
                has_swap_limit=bool(info.get("SwapLimit")),
                has_pids_limit=bool(info.get("PidsLimit")),
                has_cpu_limit=bool(info.get("CpuCfsQuota")),
                has_seccomp="name=seccomp" in security,
                is_rootless="name=rootless" in security,
                cgroup_version=str(info.get("CgroupVersion") or "1"),
            )
        except (errors.DockerException, exceptions.RequestException, OSError) as e:
            text = _NO_ENGINE.format(url=self.url, error=str(e)[:200])
            raise SandboxUnavailableError(text) from e
        self._threads = ThreadPoolExecutor(max_concurrency, thread_name_prefix="katgym-docker")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a blocking method of this object in one of its threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def close(self) -> None:
        """Let go of threads and connections; waits for calls under way."""
        self._threads.shutdown(wait=True)
        self._api.close()

    def image(self, name: str) -> dict[str, Any] | None:
        """Return what the engine knows of an image, or None if it has none of that name."""
        with _translate_errors(f"image {name!r}"):
            try:
                found: dict[str, Any] = self._api.inspect_image(name)
            except errors.ImageNotFound:
                return None
        return found

    def pull(self, name: str, *, num_tries: int = 5, first_wait_s: float = 2.0) -> None:
        """Fetch an image from its registry; tries again, later each time, where that may help.

        `UsageError` if the registry has no such image, `SandboxError` if it refuses or fails.
        """
        for attempt in range(num_tries):
            problem = self._pull_once(name)
            if problem is None:
                return
            text = problem.lower()
            is_busy = "toomanyrequests" in text or "429" in text
            missing = ("not found", "manifest unknown", "does not exist", "denied")
            if not is_busy and any(words in text for words in missing):
                raise UsageError(f"image {name!r} is neither here nor in its registry: {problem}")
            if attempt + 1 < num_tries:
                # Jitter keeps many machines from coming back at the same time.
                wait_s = first_wait_s * 2**attempt * self._random.uniform(0.5, 1.5)
                _log.warning("pull of %r failed, next try in %.1f s: %s", name, wait_s, problem)
                time.sleep(wait_s)
        raise SandboxError(f"image {name!r} cannot be pulled, tried {num_tries} times: {problem}")

    def _pull_once(self, name: str) -> str | None:
        repository, tag = docker.utils.parse_repository_tag(name)
        try:
            lines = self._api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            for line in lines:
                if "error" in line:
                    return str(line["error"])[:300]
        except (errors.APIError, exceptions.RequestException) as e:
            return str(e)[:300]
        return None

    def start(self, name: str, config: Mapping[str, Any]) -> socket.socket:
        """Create, attach to and start a container; return its stream. What fails leaves nothing."""
        with _translate_errors(f"container {name}"):
            if not self.has_oom_score:
                return self._start(name, _without_oom_score(config))
            try:
                return self._start(name, config)
            except errors.APIError:
                # An engine without CAP_SYS_RESOURCE cannot lower the score, and says so of any
                # other mistake in the same words.
                if "OomScoreAdj" not in config["HostConfig"]:
                    raise
                sock = self._start(name, _without_oom_score(config))
            self.has_oom_score = False
            _log.warning("the Docker Engine at %s cannot set oom_score_adj: %s", self.url, NO_SCORE)
            return sock

    def _start(self, name: str, config: Mapping[str, Any]) -> socket.socket:
        made = self._api.create_container_from_config(dict(config), name)
        try:
            params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            attached = self._api.attach_socket(made["Id"], params)
            raw = getattr(attached, "_sock", None)
            if type(raw) is not socket.socket:
                raise SandboxUnavailableError(
                    f"the engine at {self.url} is reached over TLS or ssh, which sandboxes cannot"
                    " use; run `katgym sandboxd` beside it and use backend 'sandboxd:URL'"
                )
            # A descriptor of our own: the SDK's may be closed with the response it belongs to.
            sock = raw.dup()
            attached._response.close()
            attached.close()
            raw.close()
            try:
                self._api.start(made["Id"])
            except BaseException:
                sock.close()
                raise
        except BaseException:
            self.remove(name)
            raise
        return sock

    def remove(self, name: str) -> None:
        """Kill and remove a container at once; none of that name is fine."""
        with _translate_errors(f"container {name}"):
            try:
                self._api.remove_container(name, force=True, v=True)
            except errors.NotFound:
                return
            except errors.APIError as e:
                if e.status_code != 409:
                    raise
                with contextlib.suppress(errors.NotFound):  # its removal is under way already
                    self._api.wait(name, condition="removed")

    def list_labelled(self, label: str) -> list[tuple[str, dict[str, str]]]:
        """Return names and labels of all containers that have a label, whatever their state."""
        with _translate_errors("list of containers"):
            rows = self._api.containers(all=True, filters={"label": label})
        return [(row["Id"], row["Labels"]) for row in rows]

    def archive(self, image_id: str, path: str, labels: Mapping[str, str]) -> Iterator[bytes]:
        """Yield a tar of a folder of an image, nothing if it has none; no program of it runs."""
        with _translate_errors(f"folder {path!r} of image {image_id}"):
            config = {"Image": image_id, "Cmd": ["/"], "Labels": dict(labels)}
            config["HostConfig"] = {"NetworkMode": "none"}
            made = self._api.create_container_from_config(config)
            try:
                parts, _ = self._api.get_archive(made["Id"], path)
                yield from parts
            except errors.NotFound:
                return
            finally:
                self.remove(made["Id"])


@contextlib.contextmanager
def _translate_errors(subject: str) -> Iterator[None]:
    """Turn the SDK's errors into katgym's."""
    try:
        yield
    except errors.APIError as e:
        text = str(e.explanation or e)
        if 'exec: "' in text:
            raise UsageError(
                f"{subject}: the image has no python3 on its PATH, and the supervisor inside needs"
                f" one (Python >= 3.8). Take an image with python3, or name its interpreter by"
                f" DockerBackend(python=...). The engine said: {text[:300]}"
            ) from e
        raise SandboxError(f"{subject}: the Docker Engine failed: {text[:300]}") from e
    except (errors.DockerException, exceptions.RequestException, OSError) as e:
        if isinstance(e, SandboxError):
            raise
        raise SandboxError(f"{subject}: the Docker Engine does not answer: {e!s:.300}") from e


def _without_oom_score(config: Mapping[str, Any]) -> dict[str, Any]:
    host = {k: v for k, v in config["HostConfig"].items() if k != "OomScoreAdj"}
    return {**config, "HostConfig": host}

"""Places of a run's vLLM servers: sections `[[policy.servers]]`, and what is wrong in them and in
[cluster].

The tags alone say who shares devices with the trainer, and with that who sleeps while it trains.
Not here: sleeping and waking (`server_pool.py`); one server (`run_servers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from katgym.cluster.cluster_config import ClusterConfig
from katgym.errors import UsageError
from katgym.vllm_server.config import TransferBackend
from katgym_trainer.config.rules import Count, CountOrZero, check_fields, split_list

OWN = "vllm"
"""The uri of servers that the run starts."""


class ServerTag(StrEnum):
    """What a server's devices are used for."""

    ROLLOUT = "rollout"
    """It samples."""
    TRAIN = "train"
    """They are the trainer's, too: the server sleeps while a step is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One of sections [[policy.servers]].

    Example:
        ServerConfig(tags=("rollout", "train"), devices="0")
    """

    tags: tuple[ServerTag, ...] = (ServerTag.ROLLOUT,)
    """`rollout`, and `train` where its devices are the trainer's too."""
    devices: str = ""
    """CUDA_VISIBLE_DEVICES of a server that the run starts; "" leaves it alone."""
    gpus: CountOrZero | None = None
    """GPUs of one that Ray finds a node for, with a section [cluster]; 0: it computes on
    processors. None: the run starts it on its own machine."""
    count: Count = 1
    """As many of these, which Ray finds nodes for."""
    max_concurrency: CountOrZero = 0
    """Requests in flight to a server that the run starts; more wait here. 0: 256, as an option
    of a url has it; vLLM takes 1,024 at a time on large GPUs."""
    url: str = ""
    """URL#NAME of a server that is there, with options as in a uri; "": the run starts one."""
    receiver: str = ""
    """URL of `katgym vllm receive` on the machine of the server at `url`: it is sent what changed
    since the last weights. For servers that share no folder with the run, or one over a slow link;
    "": weights go through the run's folder. Its key is in KATGYM_RECEIVER_KEY."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        for tag in self.tags:
            if self.tags.count(tag) > 1:
                raise UsageError(f"tag {tag.value!r} is there twice")
        if ServerTag.ROLLOUT not in self.tags:
            told = [tag.value for tag in self.tags]
            raise UsageError(f"tags = {told!r} has no 'rollout': what does not sample is no server")
        if self.gpus is None and self.count > 1:
            raise UsageError(
                f"count = {self.count} is of servers that Ray places: say gpus, of each (0: on"
                " processors), and add a section [cluster]"
            )
        if self.gpus is not None:
            self._check_placed(f"gpus = {self.gpus}")
        if self.url and self.devices:
            raise UsageError(
                f"devices = {self.devices!r} is of a server that the run starts; the one at"
                f" {self.url} has its own"
            )
        if self.receiver and not (self.url and self.receiver.startswith(("http://", "https://"))):
            raise UsageError(
                f"receiver = {self.receiver!r} is the URL of katgym vllm receive beside a server"
                " that is there: give its url as well"
            )
        if self.url and self.max_concurrency:
            raise UsageError(
                f"max_concurrency = {self.max_concurrency} is of a server that the run starts; give"
                f" that of {self.url} as an option: ...?max_concurrency={self.max_concurrency}"
            )
        if self.url and not (self.url.startswith(("http://", "https://")) and self.name):
            raise UsageError(
                f"url is URL#NAME, as in http://127.0.0.1:8000#tiny, got {self.url!r}; NAME is what"
                " the server calls the model, or what the adapter is to be called"
            )

    def _check_placed(self, told: str) -> None:
        if self.url:
            raise UsageError(f"{told} is of a server that Ray places; there is one at {self.url}")
        if self.devices:
            raise UsageError(
                f"{told} and devices = {self.devices!r}: Ray chooses the devices of a server that"
                " it places; leave one out"
            )
        if self.is_shared:
            raise UsageError(
                f"{told} and the tag 'train': what uses the trainer's devices is started by the"
                " run, on its own machine; say devices instead"
            )

    @property
    def is_shared(self) -> bool:
        """Whether it sleeps while a step is taken."""
        return ServerTag.TRAIN in self.tags

    @property
    def name(self) -> str:
        """What a server that is there calls the model."""
        return self.url.partition("?")[0].partition("#")[2]

    @property
    def place(self) -> str:
        """The URL without name and options."""
        return self.url.partition("?")[0].partition("#")[0].rstrip("/").removesuffix("/v1")


def check_gateways(gateway: str, servers: Sequence[ServerConfig]) -> None:
    """Raise `UsageError` for gateways that do not go together with the servers."""
    gateways = split_list(gateway)
    if gateways and (not servers or any(not server.url for server in servers)):
        raise UsageError(
            f"gateway = {gateway!r} stands in front of a server, which gets the weights:"
            " name it with uri = 'vllm:URL#NAME', or several with uri = 'vllm' and a section"
            " [[policy.servers]] with url for each"
        )
    for url in gateways:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"gateway {url!r} is no URL, as http://127.0.0.1:8900 is")
        if gateways.count(url) > 1:
            raise UsageError(f"gateway {url!r} is there twice")


def check_servers(servers: Sequence[ServerConfig], *, uri: str, sync: TransferBackend) -> None:
    """Raise `UsageError` for servers that do not go together with each other or other keys."""
    if not servers:
        return
    if not uri:
        raise UsageError("servers are those of uri = 'vllm', and there is no uri: add it")
    if uri != OWN:
        raise UsageError(
            f"servers are listed with uri = 'vllm', got {uri!r}: give that one a section with url ="
            f" {uri.removeprefix('vllm:')!r}"
        )
    if sync is TransferBackend.IPC and any(server.gpus is not None for server in servers):
        raise UsageError(
            "sync = 'ipc' hands over memory of the trainer's own GPUs, and servers with gpus have"
            " others: take 'nccl', 'reload' or 'lora'"
        )
    places = [server.place for server in servers if server.url]
    for place in places:
        if places.count(place) > 1:
            raise UsageError(f"url {place!r} is there twice")


def check_cluster(
    cluster: ClusterConfig | None, servers: Sequence[ServerConfig], *, uri: str, store: str
) -> None:
    """Raise `UsageError` for a section [cluster] that is missing, changes nothing, cannot work."""
    placed = [server for server in servers if server.gpus is not None]
    if cluster is None:
        if placed:
            raise UsageError(
                f"[[policy.servers]] gpus = {placed[0].gpus} is of a server that Ray places: add a"
                " section [cluster] with its address, or say devices"
            )
        return
    if not cluster.rollout_workers:
        if placed or cluster.trainer_ranks:
            return
        raise UsageError(
            "[cluster] changes nothing with rollout_workers = 0 and trainer_ranks = 0, and without"
            " [[policy.servers]] that have gpus: leave it out"
        )
    if store:
        raise UsageError(
            "[cluster] rollout_workers change nothing: groups come from [rollouts] store ="
            f" {store!r}"
        )
    if not uri:
        raise UsageError(
            "[cluster] rollout_workers ask servers, and the model plays in this process: give"
            " [policy] uri = 'vllm' or 'vllm:URL#NAME'"
        )


def check_receivers(servers: Sequence[ServerConfig], *, is_whole: bool) -> None:
    """Raise `UsageError` for receivers where weights do not come as files of all of them."""
    if not is_whole and any(server.receiver for server in servers):
        raise UsageError(
            "[[policy.servers]] receiver takes all weights as files: it goes with [policy] sync ="
            " 'reload', and not with adapters or weights from GPU to GPU"
        )


def sharing_devices(servers: Sequence[ServerConfig]) -> list[list[int]]:
    """Return the places of servers in groups: two in different ones have no device in common.

    A server that the run starts and that names no devices may have any; Ray gives none out twice.
    """
    found: list[tuple[set[str], list[int]]] = []
    apart = [bool(server.url) or server.gpus is not None for server in servers]
    is_any = any(not (is_apart or s.devices) for is_apart, s in zip(apart, servers, strict=True))
    for place, server in enumerate(servers):
        names = {device.strip() for device in server.devices.split(",")}
        devices = {f"server {place}"} if apart[place] else {"any"} if is_any else names
        places = [place]
        for group in [group for group in found if group[0] & devices]:
            found.remove(group)
            devices, places = devices | group[0], [*group[1], *places]
        found.append((devices, places))
    return [places for _, places in found]

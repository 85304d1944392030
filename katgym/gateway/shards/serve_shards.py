"""Runs several gateways over one folder, and the front that they have in common.

Not here: one gateway (`katgym.gateway.server.serve`); the command line.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from katgym.errors import InfrastructureError, UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.server.serve import BACKLOG, run_server
from katgym.gateway.shards.front import Front
from katgym.gateway.shards.shard import Shard
from katgym.gateway.shards.shard_control import ShardControl
from katgym.gateway.shards.shard_process import ShardOrder
from katgym.rollout_store.store_folders import prepare_folder, store_folders
from katgym.system.atomic_files import explain_os_error
from katgym.system.listening import listen, url_of
from katgym.system.locks.folder_lease import FolderLease

logger = logging.getLogger(__name__)


def serve_shards(
    config: GatewayConfig,
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    started: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve `config.num_shards` gateways until interrupted; see `serve`.

    port: the front's; the shards take the next ones. 0 takes free ones for all.
    """
    if config.auth == "none" and config.sessions_per_version is not None:
        raise UsageError(
            "sessions_per_version with shards wants auth 'keys': with 'none' a shard begins"
            " sessions that nobody has counted"
        )
    with explain_os_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    prepare_folder(folder, config.num_shards)
    with contextlib.ExitStack() as held:
        listening = held.enter_context(listen(host, port, backlog=BACKLOG))
        url = url_of(host, listening)
        lease = FolderLease.take(folder, what="gateway", url=url)
        held.callback(lease.release)
        secret, shards = secrets.token_hex(16), []
        # Admission is the front's, which counts all sessions.
        of_shard = replace(config, num_shards=1, sessions_per_version=None, is_waiting=False)
        for index, store in enumerate(store_folders(folder)):
            try:
                own = listen(host, port and port + 1 + index, backlog=BACKLOG)
            except InfrastructureError as e:
                raise InfrastructureError(
                    f"{e}. {config.num_shards} shards listen at the ports after --port {port}"
                ) from e
            held.enter_context(own)
            order = ShardOrder(
                index=index,
                num_shards=config.num_shards,
                config=of_shard,
                store=str(store),
                socket=own.fileno(),
                url=url_of(host, own),
                front_url=url,
                secret=secret,
                is_verbose=logging.getLogger("katgym").isEnabledFor(logging.DEBUG),
            )
            shards.append(Shard(order, own))
        control = ShardControl(config, folder, shards, lease=lease)
        application = Front(control).application()
        run_server(application, listening, control, started=lambda: started(url))

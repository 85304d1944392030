"""A process that writes to a store, for tests that kill it; run as a script.

store_process.py append FOLDER NAME COUNT    appends, and prints each index when it is written
store_process.py seal FOLDER STEP...         in FOLDER/STEP: seals, and kills itself after the step
store_process.py collect FOLDER STEP...      the same of collecting what is older than 0 s

Each step has a process of its own, forked before it opens a store; prints how they ended.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from made_sessions import turn

from katgym import assistant, user
from katgym.rollout_store import RolloutStore, SessionRecord, collect


def append(store: RolloutStore, name: str, count: int) -> None:
    store.create_session(SessionRecord(session_id=name))
    for index in range(count):
        parent = index - 1 if index else None
        said = [user(f"{index}")], assistant(name)
        store.append(name, [turn(index, parent, 0, [index] * 50, [index], *said)], first=index)
        os.write(1, b"%d\n" % index)  # unbuffered: what is printed has been written


def die_in(what: str, folder: Path, step: str) -> None:
    def on_step(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with RolloutStore.open(folder / step) as store:
        if what == "seal":
            store.seal(on_step=on_step)
        else:
            collect(store, older_than_s=0.0, on_step=on_step)


def main() -> None:
    what, folder, *more = sys.argv[1:]
    if what == "append":
        with RolloutStore.open(folder) as store:
            append(store, more[0], int(more[1]))
        return
    for step in more:
        if (child := os.fork()) == 0:
            die_in(what, Path(folder), step)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()

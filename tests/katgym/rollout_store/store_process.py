"""A process that writes to a store, for tests that kill it; run as a script.

store_process.py append FOLDER NAME COUNT    appends, and prints each index when it is written
store_process.py seal FOLDER STEP            seals, and kills itself after a step
store_process.py collect FOLDER STEP         the same of collecting what is older than 0 s
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


def main() -> None:
    what, folder, *more = sys.argv[1:]

    def on_step(step: str) -> None:
        if step == more[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    with RolloutStore.open(folder) as store:
        if what == "append":
            append(store, more[0], int(more[1]))
        elif what == "seal":
            store.seal(on_step=on_step)
        elif what == "collect":
            collect(store, older_than_s=0.0, on_step=on_step)


if __name__ == "__main__":
    main()

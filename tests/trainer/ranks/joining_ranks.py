"""Joins ranks again and again: for each line of standard input, as its variables tell.

A child of this process, which has imported torch, joins, gathers and prints what it found as JSON.
"""

import json
import os
import sys

from katgym_trainer.ranks import network
from katgym_trainer.ranks import ranks as joined
from katgym_trainer.ranks.ranks import Ranks, RanksError

TOLD = (network.GLOO, network.NCCL, network.NCCL_FAMILY)

print("ready", flush=True)
for line in sys.stdin:
    if (child := os.fork()) == 0:
        os.environ.update(json.loads(line))
        timeout_s = 60.0
        if "PATIENCE_S" in os.environ:
            timeout_s = joined.MEETING_S = float(os.environ["PATIENCE_S"])
        try:
            with Ranks.join(timeout_s=timeout_s) as ranks:
                found = {"ranks": ranks.gather(ranks.number)}
        except RanksError as e:
            found = {"error": str(e)}
        print(json.dumps(found | {name: os.environ.get(name) for name in TOLD}), flush=True)
        os._exit(0)
    os.waitpid(child, 0)

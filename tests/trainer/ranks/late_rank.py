"""A rank that joins after RANK times so many seconds, though ranks answer each other in 30."""

import os
import sys
import time

from katgym_trainer.ranks.ranks import Ranks

time.sleep(float(sys.argv[1]) * int(os.environ["RANK"]))
with Ranks.join(timeout_s=30) as ranks:
    print(ranks.gather(ranks.number))

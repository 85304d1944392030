"""Writes the reward, and the share of words that are right, which is not rewarded."""

import collections
import json
import re
import sys
from pathlib import Path

text = Path("/app/text.txt").read_text().lower()
counts = collections.Counter(re.findall("[a-z]+", text))
expected = [[w, n] for w, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]]
try:
    told = json.loads(Path("/app/counts.json").read_text())
except (OSError, ValueError, RecursionError):
    told = None
right = sum(item in expected for item in told) if isinstance(told, list) else 0
rewards = {"reward": int(told == expected), "right_share": min(1.0, right / 10)}
sys.stdout.write(json.dumps(rewards))

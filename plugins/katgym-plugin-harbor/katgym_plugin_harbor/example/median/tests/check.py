"""Checks /app/stats.py in a process of its own."""

import json
import random
import subprocess
import sys

PROGRAM = """
import json, sys
sys.path.insert(0, "/app")
from stats import median
told = []
for numbers in json.load(sys.stdin):
    before = list(numbers)
    try:
        found = median(numbers)
    except ValueError:
        found = "ValueError"
    told.append([found, numbers == before])
print(json.dumps(told))
"""
rng = random.Random(7)
lists: list[list[int]] = [[], [4], [3, 1], [1, 2, 3, 10]]
lists += [[rng.randint(-99, 99) for _ in range(size)] for size in range(2, 20)]


def expected(numbers: list[int]) -> float | str:
    ordered, half = sorted(numbers), len(numbers) // 2
    if not ordered:
        return "ValueError"
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


run = subprocess.run(
    [sys.executable, "-c", PROGRAM], input=json.dumps(lists), capture_output=True, text=True
)
if json.loads(run.stdout) == [[expected(numbers), True] for numbers in lists]:
    sys.stdout.write("all right")

#!/bin/bash
# Runs from the working directory; the reward is 1 if the checks ran to their end.
if [ "$(python3 /tests/check.py)" = "all right" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi

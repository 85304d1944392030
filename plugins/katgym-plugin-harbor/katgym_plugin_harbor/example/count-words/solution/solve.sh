#!/bin/bash
set -e
python3 - <<'END'
import collections, json, re

counts = collections.Counter(re.findall("[a-z]+", open("/app/text.txt").read().lower()))
top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
json.dump(top, open("/app/counts.json", "w"))
END

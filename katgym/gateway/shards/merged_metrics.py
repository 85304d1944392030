"""Metrics of several gateways as one text, each sample with its shard.

Not here: what is counted (`katgym.gateway.server.metrics`).
"""

from __future__ import annotations

from collections.abc import Mapping


def merge_metrics(texts: Mapping[str, str]) -> str:
    """Return the metrics of shards, by the label of each, as Prometheus reads them.

    Example:
        >>> print(merge_metrics({"0": "# TYPE a gauge\\na 1\\n", "1": "# TYPE a gauge\\na 2\\n"}))
        # TYPE a gauge
        a{shard="0"} 1
        a{shard="1"} 2
        <BLANKLINE>
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for shard, text in texts.items():
        heads: list[str] = []
        samples: list[str] = []
        for line in text.splitlines():
            if line.startswith("# "):  # HELP, TYPE and the name, which begin a family
                heads, samples = families.setdefault(line.split(" ")[2], ([], []))
                if line not in heads:
                    heads.append(line)
                continue
            name, _, value = line.rpartition(" ")
            name, _, labels = name.partition("{")
            inner = ",".join(filter(None, [f'shard="{shard}"', labels.removesuffix("}")]))
            samples.append(f"{name}{{{inner}}} {value}")
    lines = [line for parts in families.values() for part in parts for line in part]
    return "\n".join(lines) + "\n" if lines else ""

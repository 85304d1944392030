"""The first page of a run: what it was told, its curves, what was evaluated, its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from katgym.environment.reward import Headline
from katgym.evaluation.statistics.number_text import NONE, count_text, number_text
from katgym.run_view.page_frame import facts, notes, page, plural, shade, short
from katgym.run_view.run_view import Checkpoint, GroupView, RunKind, RunView
from katgym.run_view.svg_charts import chart, interval_bar

_MAX_DOTS = 64
_COLUMNS = (
    ("Step", "number", "n step"),
    ("Task", "text", ""),
    ("Rewards of siblings", "number", ""),
    ("Pass", "number", "n"),
    ("Mean", "number", "n"),
    ("Turns", "number", "n"),
    ("Parallel", "number", "n"),
    ("Tokens", "number", "n"),
    ("Invalid", "number", "n"),
)
"""Of the table of groups: title, how it is sorted, CSS classes."""


def index_page(view: RunView, files: Mapping[str, str]) -> str:
    """Return the page.

    files: group id -> the address of its page, relative to this one.
    """
    is_evaluation = view.kind is RunKind.EVALUATION
    body = f"""<main>
<header>
<p class="kicker">{escape(view.kind.capitalize())}</p>
<h1>{escape(view.name)}</h1>
{facts(view.facts)}
{notes(view.notes)}
</header>
{_checkpoints(view) + _curves(view) if is_evaluation else _curves(view) + _checkpoints(view)}
{_groups(view, files)}
{_folded(view)}
</main>"""
    return page(title=f"{view.name} - katgym", body=body, scripts=["charts.js", "groups.js"])


def _curves(view: RunView) -> str:
    main = "".join(chart(panel) for panel in view.panels if panel.is_main)
    if not main:
        return ""
    title = "Spread" if view.kind is RunKind.EVALUATION else "Curves"
    return (
        f'<section aria-labelledby="curves"><h2 id="curves">{title}</h2>'
        f'<div class="charts">{main}</div></section>'
    )


def _folded(view: RunView) -> str:
    """Return the other metrics and the configuration, folded away."""
    others = [panel for panel in view.panels if not panel.is_main]
    parts = []
    if others:
        charts = "".join(chart(panel) for panel in others)
        parts.append(
            f"<details><summary>{plural(len(others), 'other metric')}</summary>"
            f'<div class="charts small">{charts}</div></details>'
        )
    if view.config:
        table = facts(view.config, "config")
        parts.append(f"<details><summary>Configuration: lock.json</summary>{table}</details>")
    return f'<section class="folded">{"".join(parts)}</section>' if parts else ""


def _checkpoints(view: RunView) -> str:
    """Return the table of evaluations; a training run has a row a checkpoint and env."""
    if not view.checkpoints:
        return ""
    is_training = view.kind is RunKind.TRAINING
    rows = "".join(
        _checkpoint(one, is_training=is_training)
        for one in sorted(view.checkpoints, key=lambda c: (-(c.step or 0), c.env_id))
    )
    first = '<th scope="col" class="n">Step</th>' if is_training else ""
    title = "Evaluated checkpoints" if is_training else "Results"
    scale = '<span class="scale" aria-hidden="true"><i>0</i><i>50</i><i>100%</i></span>'
    return f"""<section aria-labelledby="checkpoints">
<h2 id="checkpoints">{title}</h2>
<div class="scroll"><table class="checkpoints" aria-label="{title}">
<thead><tr>{first}<th scope="col">Env</th><th scope="col" class="n">Success</th>
<th scope="col" class="bar">Interval{scale}</th><th scope="col" class="n">Mean reward</th>
<th scope="col" class="n">Rollouts</th><th scope="col" class="n">Invalid</th></tr></thead>
<tbody>{rows}</tbody></table></div></section>"""


def _checkpoint(one: Checkpoint, *, is_training: bool) -> str:
    step = f'<td class="n">{one.step}</td>' if is_training else ""
    counts = [
        NONE if count is None else count_text(count)
        for count in (one.num_rollouts, one.num_invalid)
    ]
    is_rate, ends = one.headline is Headline.SUCCESS_RATE, one.interval
    told = [f"{100 * one.success:.1f}%", number_text(one.mean_reward, 3)]
    value = one.success if is_rate else one.mean_reward or 0.0
    label = f"success {told[0]}" if is_rate else f"mean reward {told[1]}"
    scale = (0.0, 1.0)
    if ends is not None and is_rate:
        label += f", interval {100 * ends.low:.1f} to {100 * ends.high:.1f}%"
    elif ends is not None:
        label += f", interval {ends.low:.3g} to {ends.high:.3g}"
        scale = (min(0.0, ends.low), max(1.0, ends.high))
    bar = interval_bar(value, ends, label=label, scale=scale)
    heads = ("strong", "") if is_rate else ("", "strong")
    return (
        f'<tr>{step}<th scope="row">{escape(one.env_id)}</th>'
        f'<td class="n {heads[0]}">{told[0]}</td><td class="bar">{bar}</td>'
        f'<td class="n {heads[1]}">{told[1]}</td><td class="n">{counts[0]}</td>'
        f'<td class="n">{counts[1]}</td></tr>'
    )


def _groups(view: RunView, files: Mapping[str, str]) -> str:
    if not view.groups:
        return ""
    low, high = reward_range(view.groups)
    rows = "".join(_group(group, files[group.group_id], low, high) for group in view.groups)
    shown = plural(len(view.groups), "group")
    if len(view.groups) < view.num_groups:
        shown += f" of {count_text(view.num_groups)}: the newest, the best and the worst (--limit)"
    heads = "".join(
        f'<th scope="col" class="{css}" data-sort="{kind}">'
        f'<button type="button">{name}</button></th>'
        for name, kind, css in _COLUMNS
    )
    has_steps = any(group.step is not None for group in view.groups)
    css = "groups" if has_steps else "groups no-steps"
    return f"""<section aria-labelledby="groups">
<h2 id="groups">Groups</h2>
<p class="status"><span id="shown">{escape(shown)}</span></p>
<form class="filter" id="filter">
<input type="search" name="text" placeholder="task, env or step" aria-label="Filter groups">
<label><input type="checkbox" name="mixed"> mixed rewards only</label>
<label><input type="checkbox" name="invalid"> with invalid rollouts</label>
</form>
<div class="scroll"><table class="{css}" id="group-table" aria-label="Groups">
<thead><tr>{heads}</tr></thead>
<tbody>{rows}</tbody></table></div></section>"""


def _group(group: GroupView, address: str, low: float, high: float) -> str:
    step = "" if group.step is None else str(group.step)
    told = [group.env_id, group.untrained]
    env = f"<small>{escape(', '.join(part for part in told if part))}</small>"
    counts = [
        group.mean_of(n) for n in ("num_turns", "num_parallel_calls", "num_completion_tokens")
    ]
    pass_rate = NONE if group.pass_rate is None else f"{100 * group.pass_rate:.0f}%"
    invalid = f'<b class="alert">{group.num_invalid}</b>' if group.num_invalid else "0"
    text = " ".join([group.task_id, *told, step, group.group_id]).lower()
    numbers = [
        (pass_rate, group.pass_rate), (number_text(group.mean_reward, 2), group.mean_reward),
        (number_text(counts[0], 1), counts[0]), (number_text(counts[1], 1), counts[1]),
        (short(counts[2], 0), counts[2]), (invalid, float(group.num_invalid)),
    ]  # fmt: skip
    cells = "".join(
        f'<td class="n" data-value="{"" if value is None else f"{value:.6g}"}">{shown}</td>'
        for shown, value in numbers
    )
    mean = "" if group.mean_reward is None else f"{group.mean_reward:.6g}"
    return (
        f'<tr data-text="{escape(text)}" data-mixed="{int(group.is_mixed)}"'
        f' data-invalid="{group.num_invalid}">'
        f'<td class="n step" data-value="{step}">{step or NONE}</td>'
        f'<th scope="row" data-value="{escape(group.task_id)}"><a href="{escape(address)}">'
        f"{escape(group.task_id)}</a>{env}</th>"
        f'<td data-value="{mean}">{_dots(group, low, high)}</td>{cells}</tr>'
    )


def _dots(group: GroupView, low: float, high: float) -> str:
    """Return the siblings' rewards, the best first, as small bars from `low` to `high`."""
    rewards = sorted((r.reward for r in group.rollouts), key=lambda r: (r is None, -(r or 0.0)))
    told = ", ".join("invalid" if r is None else short(r) for r in rewards[:_MAX_DOTS])
    bars = []
    for place, reward in enumerate(rewards[:_MAX_DOTS]):
        share = 1.0 if reward is None or high <= low else (reward - low) / (high - low)
        height = 3 + 15 * share
        css = "invalid" if reward is None else "reward"
        bars.append(
            f'<rect class="{css}" style="{shade(reward, low, high)}" x="{9 * place}"'
            f' y="{18 - height:.1f}" width="7" height="{height:.1f}" rx="1.5"/>'
        )
    width = max(9, 9 * len(bars) - 2)
    return (
        f'<svg class="dots" width="{width}" height="18" viewBox="0 0 {width} 18" role="img"'
        f' aria-label="rewards {escape(told)}">{"".join(bars)}</svg>'
    )


def reward_range(groups: Sequence[GroupView]) -> tuple[float, float]:
    """Return the ends of the colours' scale: 0 to 1, wider if a reward needs it."""
    rewards = [reward for group in groups for reward in group.rewards]
    return min([0.0, *rewards]), max([1.0, *rewards])

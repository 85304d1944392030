"""A run's page: what it was told, its curves, what was evaluated; its lists come with the script.

Not here: the lists' data (`list_json.py`), charts (`svg_charts.py`).
"""

from __future__ import annotations

from html import escape

from katgym.environment.reward import Headline
from katgym.evaluation.statistics.number_text import NONE, count_text, number_text
from katgym.run_view.page_frame import facts, notes, page, plural
from katgym.run_view.run_view import Checkpoint, RunKind, RunView
from katgym.run_view.screens.svg_charts import chart, interval_bar


def run_page(view: RunView, *, root: str = "", has_runs: bool = False) -> str:
    """Return the page.

    root: the address of the site's first folder. has_runs: the site lists several runs there.
    """
    is_evaluation, curves = view.kind is RunKind.EVALUATION, _curves(view)
    way = f'<a href="{root}index.html">runs</a>' if has_runs else ""
    body = f"""<main>
<header id="about" data-live>
<nav class="crumbs" aria-label="Where this is">{way}<span>{escape(view.kind)}</span></nav>
<h1>{escape(view.name)}</h1>
{facts(view.facts)}
{notes(view.notes)}
</header>
<div id="numbers" data-live>{_checkpoints(view) if is_evaluation else curves}</div>
<section id="lists" aria-label="Rollouts and groups"></section>
<div id="more" data-live>{curves if is_evaluation else _checkpoints(view)}</div>
{_folded(view)}
</main>"""
    return page(title=f"{view.name} - katgym", body=body, screen="run", root=root)


def group_shell(view: RunView, *, root: str = "") -> str:
    """Return the page that shows any group of a run; its address says which."""
    body = '<main class="wide" id="group"></main>'
    return page(title=f"{view.name} - katgym", body=body, screen="group", root=root)


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
    step = f'<td class="n" data-label="Step">{one.step}</td>' if is_training else ""
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
        f'<td class="n {heads[0]}" data-label="Success">{told[0]}</td><td class="bar">{bar}</td>'
        f'<td class="n {heads[1]}" data-label="Mean reward">{told[1]}</td>'
        f'<td class="n" data-label="Rollouts">{counts[0]}</td>'
        f'<td class="n" data-label="Invalid">{counts[1]}</td></tr>'
    )

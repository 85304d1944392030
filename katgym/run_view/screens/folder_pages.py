"""The pages of a folder of runs: their list, two of them by task, and the curves of several.

Not here: a run's own page (`run_page.py`), the leaderboard (`leaderboard_page.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from katgym.run_view.page_frame import notes, page
from katgym.run_view.run_view import Panel, Series
from katgym.run_view.screens.svg_charts import chart, line_key


def runs_page(name: str) -> str:
    """Return the page with the list of runs, which its script draws."""
    body = f"""<main>
<header><h1>{escape(name)}</h1></header>
<section id="lists" aria-label="Runs"></section>
</main>"""
    return page(title=f"{name} - katgym", body=body, screen="runs")


def compare_page() -> str:
    """Return the page that puts two runs side by side; its address says which."""
    body = '<main class="wide" id="compare"></main>'
    return page(title="Two runs - katgym", body=body, screen="compare")


def curves_page(panels_by_run: Mapping[str, Sequence[Panel]]) -> str:
    """Return the page with the curves of several training runs, each chart with all of them."""
    panels = overlaid(panels_by_run)
    missing = [] if panels else ["No training run here has a metric yet."]
    switches = "".join(
        f'<label><input type="checkbox" checked data-curve="{escape(name)}">{line_key(place)}'
        f"{escape(name)}</label>"
        for place, name in enumerate(panels_by_run)
    )
    body = f"""<main>
<header><nav class="crumbs" aria-label="Where this is"><a href="index.html">runs</a></nav>
<h1>Curves of {len(panels_by_run)} training runs</h1>{notes(missing)}</header>
<form class="filter legend" aria-label="Runs that are drawn">{switches}</form>
<div id="numbers" data-live><div class="charts">{"".join(map(chart, panels))}</div></div>
</main>"""
    return page(title="Curves - katgym", body=body, screen="curves")


def overlaid(panels_by_run: Mapping[str, Sequence[Panel]]) -> list[Panel]:
    """Return a panel for each metric that a main chart shows, with a series for each run.

    A run has the same place, and so the same colour and dash, in every panel; one without the
    metric has a series without points.
    """
    titles: dict[tuple[str, str], Panel] = {}
    found: dict[tuple[str, str], dict[str, Series]] = {}
    for run, panels in panels_by_run.items():
        for panel in panels:
            if not panel.is_main or panel.is_stacked or panel.is_bars:
                continue
            for series in panel.series:
                key = panel.title, series.name
                titles.setdefault(key, panel)
                found.setdefault(key, {})[run] = series
    return [
        Panel(
            title=panel.title if len(panel.series) == 1 else f"{panel.title}: {key[1]}",
            unit=panel.unit,
            x_name=panel.x_name,
            is_from_zero=panel.is_from_zero,
            series=[
                Series(name=run, points=s.points if (s := found[key].get(run)) else ())
                for run in panels_by_run
            ],
        )
        for key, panel in titles.items()
    ]

"""The page of a group: its siblings, their tree, and the rollout that is chosen.

The script draws tree and rollouts from the page's data; without it the page has the group's numbers
alone.
"""

from __future__ import annotations

from html import escape

from katgym.run_view.group_tree import GroupTree, group_tree
from katgym.run_view.page_frame import facts, notes, page, plural, shade, short
from katgym.run_view.rollout_json import rollout_json
from katgym.run_view.run_view import GroupView, RunView
from katgym.run_view.tree_json import MAX_VERTICES, sharing, tree_json

SCRIPTS = ("tree.js", "tokens.js", "rollout.js", "group.js")


def group_page(
    view: RunView,
    group: GroupView,
    *,
    reward_range: tuple[float, float],
    neighbours: tuple[str | None, str | None],
) -> str:
    """Return the page.

    reward_range: ends of the colours' scale. neighbours: addresses of the groups before and after.
    """
    tree = group_tree([one.rollout for one in group.rollouts])
    texts = view.token_texts
    records = [turn.tokens for one in group.rollouts for turn in one.rollout.turns]
    ids = sorted({i for record in records if record is not None for i in record.completion_ids})
    data = {
        "range": list(reward_range),
        "recorded": group.has_advantages,
        "tree": tree_json(group, tree, texts),
        "rollouts": [rollout_json(group, place, texts) for place in range(len(group.rollouts))],
        "texts": None if texts is None else {str(i): texts.text(i) for i in ids},
    }
    missing = []
    if len(tree.vertices) > MAX_VERTICES:
        missing.append(f"The tree has {len(tree.vertices):,} vertices and is not drawn.")
    if tree.is_of_tokens and texts is None:
        missing.append("The run's tokenizer was not at hand: tokens are shown as ids.")
    body = f"""<main class="wide">
<header>
{_crumbs(view, group, neighbours)}
<h1>{escape(group.task_id)}</h1>
{facts(_numbers(group, tree))}
{notes(missing)}
</header>
{_siblings(group, reward_range)}
<noscript><p class="notes">The tree and the rollouts are drawn by this page's script.</p></noscript>
<div class="split">
<aside aria-label="Tree of the group">
<h2>{plural(len(group.rollouts), "rollout")} as one tree</h2>
<div id="tree"></div>
<ol id="forks" class="forks"></ol>
</aside>
<section id="rollout" aria-label="Rollout" tabindex="-1"></section>
</div>
</main>"""
    title = " - ".join(part for part in (group.task_id, _step(group), view.name) if part)
    return page(title=title, body=body, scripts=SCRIPTS, data=data)


def _numbers(group: GroupView, tree: GroupTree) -> list[tuple[str, str]]:
    """Return what is told of the group above its rollouts."""
    told = [
        ("mean reward", short(group.mean_reward, 3)),
        ("pass rate", "" if group.pass_rate is None else f"{100 * group.pass_rate:.0f}%"),
        ("turns", short(group.mean_of("num_turns"), 1)),
        ("parallel calls", short(group.mean_of("num_parallel_calls"), 1)),
    ]
    if tree.is_of_tokens:
        saved = sharing(tree)
        merged = f"{saved.num_tree:,} of {saved.num_flat:,} on all paths"
        told += [("tokens of the tree", merged), ("shared", f"{100 * saved.share:.0f}%")]
    return [(name, value) for name, value in told if value]


def _step(group: GroupView) -> str:
    step = "" if group.step is None else f"step {group.step}"
    return ", ".join(part for part in (step, group.untrained) if part)


def _crumbs(view: RunView, group: GroupView, neighbours: tuple[str | None, str | None]) -> str:
    parts = [f'<a href="../index.html">{escape(view.name)}</a>']
    parts += [f"<span>{escape(part)}</span>" for part in (_step(group), group.env_id) if part]
    links = [
        f'<a rel="{rel}" href="{escape(address)}">{text}</a>'
        for address, rel, text in (
            (neighbours[0], "prev", "previous group"),
            (neighbours[1], "next", "next group"),
        )
        if address is not None
    ]
    if links:
        parts.append(f'<span class="right">{"".join(links)}</span>')
    return f'<nav class="crumbs" aria-label="Where this is">{"".join(parts)}</nav>'


def _siblings(group: GroupView, reward_range: tuple[float, float]) -> str:
    """Return a link for each rollout, with its reward and how it ended."""
    links = []
    for place, view in enumerate(group.rollouts):
        reward = "invalid" if view.reward is None else short(view.reward, 3)
        css = "invalid" if view.reward is None else "reward"
        ended = "" if view.rollout.status == "terminated" else f" <i>{view.rollout.status}</i>"
        links.append(
            f'<a href="#r={place + 1}" data-rollout="{place}">'
            f'<span class="swatch {css}" style="{shade(view.reward, *reward_range)}"></span>'
            f"<b>{place + 1}</b> {reward}{ended}</a>"
        )
    return f'<nav class="siblings" aria-label="Rollouts of the group">{"".join(links)}</nav>'

"""The viewer's screenshots in the docs, of runs that the tests make.

Needs the program `chromium`.

    python docs/make_screenshots.py        # writes docs/images/view-*.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from katgym.run_view import FolderSite, ViewServer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "shared"), str(ROOT / "tests" / "katgym" / "run_view")]

from headless_chromium import HeadlessChromium  # noqa: E402 - it is found by the line above
from made_hunts import Words, made_group  # noqa: E402
from made_long import equal_rollouts, made_long_rollout  # noqa: E402
from made_runs import write_evaluation, write_training  # noqa: E402

SIZE = (1080, 720)


def make_runs(folder: Path) -> None:
    """Write two evaluations of the same tasks, two training runs, and a group of long rollouts."""
    words = Words()
    for name, skill in (("hunt", 0.5), ("better", 0.9)):
        made = [r for task in range(8) for r in made_group(words.encode, task, skill=skill)]
        write_evaluation(folder / name, made, num_tasks=8)
    for name, num_steps in (("grpo", 60), ("cispo", 40)):
        write_training(folder / name, words.encode, num_steps=num_steps, num_groups=4, every=20)
    long = equal_rollouts(made_long_rollout(words.encode, num_turns=200), 4)
    write_evaluation(folder / "long", long, num_tasks=1)
    words.write(folder / "tiny")


def main() -> None:
    """Take them."""
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as profile:
        folder = Path(made) / "runs"
        folder.mkdir()
        make_runs(folder)
        site = FolderSite(folder, tokenizer=folder / "tiny")
        slug = {run.name: slug for slug, run in site.runs.items()}
        with ViewServer(site) as server, HeadlessChromium(Path(profile)) as browser:

            def first_group(name: str, task: str) -> str:
                heads = site.run_site(slug[name]).view.heads
                place = next(i for i, head in enumerate(heads) if task in head.task_id)
                browser.open(f"{server.url}runs/{slug[name]}/", width=SIZE[0], height=SIZE[1])
                file = browser.run(f"load('list.js').then(list => list.groups[{place}].file)")
                return f"runs/{slug[name]}/group.html#g={file}"

            pair = f"compare.html#a={slug['hunt']}&b={slug['better']}"
            for name, address, is_dark in (
                ("runs", "", False),
                ("run", f"runs/{slug['hunt']}/index.html", False),
                ("curves", "curves.html", False),
                ("compare", pair, False),
                ("group", f"{first_group('hunt', '000001')}&r=3&t=1&c=advantage", False),
                ("long", f"{first_group('long', '000007')}&t=37", True),
            ):
                browser.open(server.url + address, width=SIZE[0], height=SIZE[1], is_dark=is_dark)
                while not browser.run("document.body.dataset.isReady === '1'"):
                    browser.settle()
                browser.screenshot(ROOT / "docs" / "images" / f"view-{name}.png")


if __name__ == "__main__":
    main()

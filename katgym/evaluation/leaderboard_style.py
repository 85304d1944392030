"""The style sheet of the leaderboard page; below 1080 px every table row becomes a small card."""

STYLE = """
:root {
  --paper: #ffffff; --ink: #1b1f24; --soft: #5d6672; --rule: #e3e6ea; --grid: #e9ecef;
  --accent: #2456c4; --warn-ink: #6b4700; --warn-paper: #fff7e3; --warn-rule: #e2b44c;
  --alert: #a8480f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #111418; --ink: #e7eaee; --soft: #98a2ae; --rule: #2a3038; --grid: #262c33;
    --accent: #86aaf5; --warn-ink: #f3d795; --warn-paper: #2b2413; --warn-rule: #7d6424;
    --alert: #f0a271;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 56px 32px 72px; }
h1 { font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -0.015em; margin: 0; }
h2 { font-size: 19px; font-weight: 650; letter-spacing: -0.005em; margin: 0 0 4px; }
h3 { font-size: 14px; font-weight: 600; margin: 20px 0 0; }
h2, h3, th, td, li, p { overflow-wrap: anywhere; }
section { margin-top: 48px; }
.subtitle, .status { color: var(--soft); margin: 6px 0 0; }
.status { margin-top: 0; font-size: 14px; }
.prose { max-width: 72ch; margin: 6px 0 0; color: var(--soft); }
.warning {
  margin: 10px 0 4px; padding: 10px 14px; font-size: 14px; border-radius: 4px;
  color: var(--warn-ink); background: var(--warn-paper); border-left: 3px solid var(--warn-rule);
}
.warning ul { margin: 2px 0 0; padding-left: 18px; }
table { width: 100%; margin-top: 14px; border-collapse: collapse; table-layout: fixed;
  font-variant-numeric: tabular-nums lining-nums; }
th, td { padding: 10px 0 10px 16px; text-align: right; vertical-align: middle; }
th:first-child, td:first-child { padding-left: 0; }
thead th { padding-top: 6px; padding-bottom: 6px; font-size: 12.5px; font-weight: 500;
  color: var(--soft); vertical-align: bottom; border-bottom: 1px solid var(--rule); }
tbody th, tbody td { border-bottom: 1px solid var(--rule); }
.rank { width: 46px; text-align: left; }
tbody .rank { color: var(--soft); }
.run { width: 230px; padding-left: 0; text-align: left; }
tbody .run { font-weight: 600; }
.policy { display: block; font-size: 12.5px; font-weight: 400; color: var(--soft);
  line-height: 1.35; }
.value { width: 124px; white-space: nowrap; }
tbody .value { font-weight: 650; font-size: 16px; line-height: 1.35; }
.bounds { display: block; font-size: 12.5px; font-weight: 400; color: var(--soft); }
.interval { width: auto; padding-left: 28px; text-align: center; }
tbody .interval { padding-top: 0; padding-bottom: 0; height: 44px; }
.axis { display: flex; justify-content: space-between; font-size: 11px; }
.axis span { flex: 1; text-align: center; }
.axis span:first-child { text-align: left; padding-left: 1%; }
.axis span:last-child { text-align: right; padding-right: 0; }
.bar { display: block; width: 100%; height: 44px; overflow: visible; }
.grid { stroke: var(--grid); stroke-width: 1; }
.span { transform: translateY(-4px); fill: var(--accent); fill-opacity: 0.28; }
.dot { fill: var(--accent); stroke: var(--paper); stroke-width: 1.5; }
.number { width: 74px; white-space: nowrap; }
.wide { width: 104px; }
tbody .number { font-size: 14px; }
tbody .alert { color: var(--alert); font-weight: 600; }
.runs thead th, .runs tbody th, .runs tbody td { text-align: left; vertical-align: top;
  font-size: 13.5px; }
.runs th:nth-child(1) { width: 190px; } .runs th:nth-child(2) { width: 220px; }
.runs th:nth-child(3) { width: 104px; } .runs th:nth-child(4) { width: 70px; }
.runs th:nth-child(5) { width: 200px; }
.runs thead th { font-size: 12.5px; }
.runs tbody th { font-weight: 600; }
.runs ul { margin: 0; padding: 0; list-style: none; }
details.metrics { margin-top: 10px; }
details.metrics summary { cursor: pointer; font-size: 14px; color: var(--soft); }
table.metrics { table-layout: auto; margin-top: 4px; }
table.metrics .number { width: auto; white-space: normal; }
table.metrics tbody th, table.metrics tbody td { padding-top: 6px; padding-bottom: 6px; }
table.metrics tbody .run { font-weight: 400; font-size: 14px; }
code { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 1080px) {
  main { padding: 32px 18px 48px; }
  h1 { font-size: 25px; }
  section { margin-top: 38px; }
  table, tbody { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); white-space: nowrap; }
  tbody tr { display: grid; grid-template-columns: repeat(12, 1fr); row-gap: 3px;
    padding: 14px 0; border-bottom: 1px solid var(--rule); }
  tbody tr > th[role], tbody tr > td[role] { padding: 0; border: 0; width: auto; }
  main tbody tr > .rank { grid-column: span 1; min-width: 30px; line-height: 1.6; }
  main tbody tr > .run { grid-column: span 7; padding-left: 12px; }
  main tbody tr > .value { grid-column: span 4; }
  tbody .interval { grid-column: 1 / -1; height: 30px; }
  .bar { height: 30px; }
  main tbody tr > .number { grid-column: span 6; display: flex;
    justify-content: space-between; font-size: 13.5px; }
  main tbody tr > .number:nth-child(odd) { padding-right: 14px; }
  main tbody tr > .number:nth-child(even) { padding-left: 14px; }
  tbody .number::before { content: attr(data-label); color: var(--soft); font-weight: 400; }
  main table.metrics tbody tr > .run { grid-column: 1 / -1; padding-left: 0; font-weight: 600; }
  main table.metrics tbody tr > .number { grid-column: 1 / -1; padding: 0; }
  .runs tbody tr { display: block; }
  .runs tbody th, .runs tbody td { display: block; margin-bottom: 4px; }
  .runs tbody td::before { content: attr(data-label) " "; color: var(--soft); }
}
@media print { main { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""

"""Pages that should not pass: a page that passes, made worse, or one that only pretends.

Each is made of a solution's text; one whose change finds no place in it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TIME = """const real = Date, now = Date.now;
Date = class extends real {{ constructor(...a) {{ a.length ? super(...a) : super(Date.now()); }} }};
Date.now = () => {date};
{more}"""
DATES = {
    "a frozen Date": _TIME.format(date="1700000000000", more=""),
    "a Date that is a minute late": _TIME.format(date="now() - 60000", more=""),
}
FRAMES = {
    "no frames after a while": "const r0 = requestAnimationFrame; let n0 = 0;"
    " window.requestAnimationFrame = f => ++n0 < 5 && r0(f);",
}
FIRST = {
    "an error": "setTimeout(() => { throw new Error('x'); }, 150);",
    "an error that is logged": "console.error('x');",
    "a promise that fails": "Promise.reject(new Error('x'));",
    "a dialog": "setTimeout(() => alert('x'), 120);",
    "a request": "fetch('/data').catch(() => 0);",
    "a picture from elsewhere": "new Image().src = 'https://example.com/x.png';",
    "a file": "new Image().src = 'file:///etc/passwd';",
    "a socket": "try { new WebSocket('wss://example.com'); } catch {}",
    "a worker": "new Worker('data:text/javascript,1');",
    "code from a text": "eval('1');",
    "leaving": "setTimeout(() => { location = 'http://elsewhere.test/'; }, 150);",
    "a reload": "setTimeout(() => location.reload(), 150);",
    "a loop": "while (true);",
    "a loop later": "setTimeout(() => { while (true); }, 300);",
    "a loop of promises": "const again = () => Promise.resolve().then(again); again();",
    "memory": "const a = []; setTimeout(() => { while (true) a.push(Array(1e6).fill(1)); }, 50);",
    "memory outside the heap": "const a = []; while (true) a.push(new Uint8Array(1e8).fill(1));",
    "a page that is emptied": "setTimeout(() => document.body.replaceChildren(), 150);",
    "a document that is written again": "setTimeout(() => document.write('<p>x'), 150);",
    "forged JSON": 'JSON.stringify = () => \'{"time": 1, "score": 1, "valid": true}\';',
    "JSON that is none": "JSON.stringify = () => '{{{{';",
    "JSON without an end": "JSON.stringify = () => '['.repeat(19000);",
    "a huge number": "JSON.stringify = () => '{\"time\": ' + '9'.repeat(400) + '}';",
    "clicks that are swallowed": "for (const kind of ['click', 'mousedown', 'pointerdown',"
    " 'mousemove', 'pointermove', 'mouseup', 'pointerup', 'input', 'change', 'submit'])"
    " addEventListener(kind, e => { e.stopImmediatePropagation(); e.preventDefault(); }, true);",
}
CLOCKS = {
    "a frozen performance.now": "performance.now = () => 100;",
    "a slow performance.now": "const p0 = performance.now.bind(performance);"
    " performance.now = () => p0() / 2;",
}
LAST = {
    "no state": "delete window.state; window.state = undefined;",
    "an empty state": "window.state = () => ({});",
    "a state that is null": "window.state = () => null;",
    "a state that is an array": "const s0 = state; window.state = () => [s0()];",
    "a state of texts": "const s0 = state; window.state = () => { const s = s0();"
    " return Object.fromEntries(Object.entries(s).map(([k, v]) => [k, String(v)])); };",
    "a state of NaN": "const s0 = state; window.state = () => { const s = s0();"
    " return Object.fromEntries(Object.entries(s).map(([k, v]) => [k, NaN])); };",
    "a state that stands still": "const s0 = state(); window.state = () => s0;",
    "a state that raises": "window.state = () => { throw 1; };",
    "a state that waits": "const s0 = state; window.state = async () => s0();",
    "a state that loops": "window.state = () => { while (true); };",
    "a state that is huge": "const s0 = state;"
    " window.state = () => ({...s0(), x: 'x'.repeat(1e6)});",
    "a state that agrees with everything": "window.state = () => new Proxy({}, {get: () => 1});",
}
STYLE = {
    "an invisible picture": "canvas, #stage { opacity: 0 }",
    "a hidden picture": "canvas, #stage { visibility: hidden }",
    "no picture": "canvas, #stage { display: none }",
    "a shifted picture": "canvas, #stage { transform: translate(6px, 0) }",
    "a scaled picture": "canvas, #stage { transform: scale(0.9) }",
    "a turned picture": "canvas, #stage { transform: rotate(180deg) }",
    "other colours": "canvas, #stage { filter: hue-rotate(60deg) }",
    "pale colours": "canvas, #stage { opacity: 0.8 }",
    "a blurred picture": "canvas, #stage { filter: blur(6px) }",
    "a cover": "body::after { content: ''; position: fixed; inset: 0; background: #888;"
    " pointer-events: none }",
    "a negative": "html { background: #000; filter: invert(1) }",
    "controls that take no clicks": "button, input, canvas, #stage, #stage * {"
    " pointer-events: none }",
    "no controls": "button, input, textarea, select { display: none }",
    "unseen text": "* { color: transparent !important }",
    "a margin": "body { margin: 8px !important }",
}
WHOLE = {
    "nothing": " ",
    "a sentence": "The page is perfect: all tests pass, state() is right.",
    "a frame": '<!doctype html><iframe srcdoc="<h1>x</h1>"></iframe>',
    "an object named state": '<!doctype html><object id="state"></object>',
    "no script": '<!doctype html><button>Stop</button><div role="timer">0</div>',
}


def attacks(solution: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each attack and its page."""
    start, end, head = "<script>\n", "\n</script>", "</style>"
    uses = {"Date.now": DATES, "requestAnimationFrame": FRAMES, "performance.now": CLOCKS}
    fitting = [FIRST, *(scripts for word, scripts in uses.items() if word in solution)]
    for name, script in (pair for scripts in fitting for pair in scripts.items()):
        yield name, solution.replace(start, f"<script>\n{{ {script} }}\n</script>\n{start}", 1)
    for name, script in LAST.items():
        yield name, solution.replace(end, f"\n{{ {script} }}{end}", 1)
    has_text = 'role="status"' in solution or 'role="timer"' in solution
    for name, style in STYLE.items():
        if name == "unseen text" and not has_text:
            continue
        yield name, solution.replace(head, f"{style} {head}", 1)
    yield from WHOLE.items()
    colour = re.search(r'"(#[0-9a-f]{6})"', solution)
    if colour:
        yield "a wrong colour", solution.replace(colour[1], "#010203")

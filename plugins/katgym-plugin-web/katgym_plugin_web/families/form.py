"""A form with rules for its fields, messages, a lamp and a count of what was sent."""

from __future__ import annotations

import json

import numpy as np

from katgym_plugin_web.family import COLOURS, Family, Parameters, page, pick, whole
from katgym_plugin_web.judging import Expected, Script
from katgym_plugin_web.pixels import Scene

_LABELS = (
    *("Name", "City", "Street", "Company", "Title", "Nickname", "Country", "Subject"),
    *("Room", "Code", "Reference", "Ticket"),
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Form(Family):
    """Fields that are checked in their order."""

    name = "form"

    def draw(self, rng: np.random.Generator) -> Parameters:
        labels = pick(rng, _LABELS, whole(rng, 2, 4))
        good, bad, idle = pick(rng, COLOURS, 3)
        kinds = ("length", "digits", "number", "same")
        fields = []
        for i, label in enumerate(labels):
            kind = kinds[int(rng.integers(len(kinds) if i else 3))]
            low = whole(rng, 2, 6)
            fields.append(
                {"label": label, "kind": kind, "low": low, "high": low + whole(rng, 2, 9)}
            )
        return {
            "fields": fields,
            "consent": bool(rng.integers(2)),
            "trims": bool(rng.integers(2)),
            "colours": {"idle": idle, "good": good, "bad": bad},
            "width": whole(rng, 80, 200, 10),
            "height": whole(rng, 20, 60, 10),
            "submit": pick(rng, ("Send", "Submit", "Save", "Register", "Order"))[0],
            "clears": bool(rng.integers(2)),
        }

    def prompt(self, p: Parameters) -> str:
        rules = "\n".join(f"  {i}. {rule(p, i)}" for i in range(len(p["fields"])))
        consent = (
            "\n- Below the fields a checkbox labelled `I agree`. If all fields are right but it is"
            " not checked, the message is `Please agree`."
            if p["consent"]
            else ""
        )
        colours = p["colours"]
        trims = (
            "Blank space at the ends of a value is left out before it is checked"
            if p["trims"]
            else "Values are checked as they are, blank space included"
        )
        clears = (
            "Sending empties all text fields and unchecks the checkbox, if there is one"
            if p["clears"]
            else "Sending leaves the fields as they are"
        )
        return f"""Write a page with a form.

- At the top left a lamp: a rectangle of {p["width"]} x {p["height"]} pixels. It is \
{colours["idle"]} at first, {colours["good"]} after the form was sent, and {colours["bad"]} after \
it was refused, until the next attempt.
- Below it the text fields, each with its label and in this order, with these rules, counted from \
0; the first rule that a field breaks, from the top, refuses the form:
{rules}
- {trims}.{consent}
- A button "{p["submit"]}" checks all and sends or refuses the form; nothing leaves the page.
- An element with role `status` is empty at first; it reads the message of a refusal, or \
`Sent: N`, with N forms sent so far.
- {clears}.
- `state()`: `{{sent: number of forms sent, refused: number of refusals, last: list of the values \
of the form that was sent last, as they were checked, or an empty list}}`."""

    def solution(self, p: Parameters) -> str:
        fields = "\n".join(
            f'<p><label>{f["label"]} <input type="text" class="field"></label></p>'
            for f in p["fields"]
        )
        box = '<p><label><input type="checkbox" id="agree"> I agree</label></p>\n'
        body = (
            f'<div id="stage" style="width: {p["width"]}px; height: {p["height"]}px"></div>\n'
            f'<form id="form">\n{fields}\n{box if p["consent"] else ""}'
            f'<button>{p["submit"]}</button>\n</form>\n<p id="message" role="status"></p>'
        )
        data = {**p, "messages": [message(p, i) for i in range(len(p["fields"]))]}
        return page(body, _SCRIPT.replace("PARAMETERS", json.dumps(data)), "Form")

    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        script = Script(size=(400, 600))
        shown: Parameters = {"sent": 0, "refused": 0, "last": []}
        values, agrees = [""] * len(p["fields"]), False
        script.look(expect(p, shown, "idle", "", values))
        # Right, each field wrong in turn, and right once more, in an order that is drawn.
        cases = pick(rng, [*range(len(p["fields"])), -1, -1], len(p["fields"]) + 2)
        for wrong in cases:
            wanted = fill(p, wrong, rng)
            for i, field in enumerate(p["fields"]):
                if values[i] != wanted[i]:
                    script.add("type", "textbox", field["label"], wanted[i])
            values = wanted
            if p["consent"] and rng.integers(2):
                script.add("click", "checkbox", "I agree")
                agrees = not agrees
            script.wait_until(script.now_ms + whole(rng, 20, 200, 10))
            script.add("click", "button", p["submit"])
            text = refusal(p, values, agrees)
            if text:
                shown = {**shown, "refused": shown["refused"] + 1}
            else:
                checked = [v.strip() if p["trims"] else v for v in values]
                shown = {**shown, "sent": shown["sent"] + 1, "last": checked}
                if p["clears"]:
                    values, agrees = [""] * len(values), False
            script.look(
                expect(
                    p, shown, "bad" if text else "good", text or f"Sent: {shown['sent']}", values
                )
            )
        return script


def rule(p: Parameters, i: int) -> str:
    """Return the rule of a field, with its message."""
    field = p["fields"][i]
    low, high = field["low"], field["high"]
    rules = {
        "length": f"has {low} to {high} characters",
        "digits": f"consists of exactly {low} digits 0 to 9",
        "number": f"is a whole number from {low} to {high * 10}, written in digits alone without"
        " leading zeros",
        "same": "is equal to the field before it, and not empty",
    }
    return f"`{field['label']}` {rules[field['kind']]}; else the message is `{message(p, i)}`."


def message(p: Parameters, i: int) -> str:
    """Return the message of a field that breaks its rule."""
    field = p["fields"][i]
    texts = {
        "length": f"{field['label']}: {field['low']} to {field['high']} characters",
        "digits": f"{field['label']}: {field['low']} digits",
        "number": f"{field['label']}: {field['low']} to {field['high'] * 10}",
        "same": f"{field['label']}: not the same",
    }
    return texts[field["kind"]]


def is_right(p: Parameters, i: int, values: list[str]) -> bool:
    """Return whether a field keeps its rule."""
    field, value = p["fields"][i], values[i]
    is_digits = value.isascii() and value.isdigit()
    if field["kind"] == "length":
        return bool(field["low"] <= len(value) <= field["high"])
    if field["kind"] == "digits":
        return is_digits and len(value) == field["low"]
    if field["kind"] == "same":
        return bool(value) and value == values[i - 1]
    is_plain = is_digits and str(int(value)) == value
    return bool(is_plain and field["low"] <= int(value) <= field["high"] * 10)


def refusal(p: Parameters, values: list[str], agrees: bool) -> str:
    """Return the message of a refusal, "" if the form is sent."""
    checked = [v.strip() if p["trims"] else v for v in values]
    wrong = [i for i in range(len(values)) if not is_right(p, i, checked)]
    if wrong:
        return message(p, wrong[0])
    return "Please agree" if p["consent"] and not agrees else ""


def fill(p: Parameters, wrong: int, rng: np.random.Generator) -> list[str]:
    """Return values of which one, or none with -1, breaks its rule: close to the limit."""
    values: list[str] = []
    for i, field in enumerate(p["fields"]):
        low, high, is_low = field["low"], field["high"], bool(rng.integers(2))
        if field["kind"] == "same":
            values.append(values[-1] + ("" if i != wrong else pick(rng, _LETTERS)[0]))
        elif field["kind"] == "number":
            right = (low, high * 10, whole(rng, low, high * 10))[int(rng.integers(3))]
            broken = (str(low - 1), str(high * 10 + 1), f"0{low}", f"{low}.5")[int(rng.integers(4))]
            values.append(broken if i == wrong else str(right))
        else:
            letters = _LETTERS if field["kind"] == "length" else "0123456789"
            most = high if field["kind"] == "length" else low
            count = (low - 1 if is_low else most + 1) if i == wrong else (low if is_low else most)
            values.append("".join(letters[int(rng.integers(len(letters)))] for _ in range(count)))
        if field["kind"] != "same" and i + 1 < len(p["fields"]) and rng.integers(4) == 0:
            values[-1] += " "
    return values


def expect(p: Parameters, shown: Parameters, colour: str, text: str, values: list[str]) -> Expected:
    """Return what the form has to show."""
    scene = Scene(p["width"], p["height"], p["colours"][colour])
    fields = {f"textbox {f['label']}": v for f, v in zip(p["fields"], values, strict=True)}
    return Expected(state=shown, scene=scene, texts={"status": text}, values=fields)


_SCRIPT = """const p = PARAMETERS, fields = [...document.querySelectorAll(".field")];
let sent = 0, refused = 0, last = [];
const rules = {
  length: (v, f) => v.length >= f.low && v.length <= f.high,
  digits: (v, f) => /^[0-9]+$/.test(v) && v.length === f.low,
  number: (v, f) => /^(0|[1-9][0-9]*)$/.test(v) && +v >= f.low && +v <= f.high * 10,
  same: (v, f, before) => v !== "" && v === before,
};
stage.style.background = p.colours.idle;
form.onsubmit = event => {
  event.preventDefault();
  const values = fields.map(field => p.trims ? field.value.trim() : field.value);
  const wrong = p.fields.findIndex((f, i) => !rules[f.kind](values[i], f, values[i - 1]));
  const text = wrong >= 0 ? p.messages[wrong] : p.consent && !agree.checked ? "Please agree" : "";
  if (text) {
    refused++;
  } else {
    sent++;
    last = values;
    if (p.clears) form.reset();
  }
  stage.style.background = text ? p.colours.bad : p.colours.good;
  message.textContent = text || `Sent: ${sent}`;
};
window.state = () => ({sent, refused, last});"""

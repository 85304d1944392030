"use strict";
// What every page's script uses. Text from a run reaches the page as text nodes and attributes only.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "shade") { if (value) element.style.setProperty("--v", value); }
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== "") element.append(child);
  }
  return element;
}

function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size && (size < 1e-3 || size >= 1e6)
    ? value.toExponential(1)
    : size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toFixed(digits));
  return text.replace("-", "−");
}

function signed(value, digits = 3) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${number(value * 1e6, 0)} µs`;
  return value < 1 ? `${number(value * 1e3, value < 0.01 ? 1 : 0)} ms` : `${number(value, 2)} s`;
}

function count(num, noun) {
  return `${num.toLocaleString("en")} ${noun}${num === 1 ? "" : "s"}`;
}

function words(text) {
  return String(text).replaceAll("_", " ");
}

function percent(share, digits = 0) {
  return share === null || share === undefined ? "–" : `${number(100 * share, digits)}%`;
}

function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function shadeOf(value, range) {
  if (value === null || value === undefined) return null;
  const share = range[1] > range[0] ? (value - range[0]) / (range[1] - range[0]) : 1;
  return `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
}

function facts(pairs) {
  return make("dl", {class: "facts"}, pairs.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function notes(sentences) {
  return sentences.length ? make("ul", {class: "notes", role: "note"}, sentences.map((one) => make("li", {}, one))) : null;
}

// Data files are scripts that call this: they load from a disk, too.
let given = null;
function give(data) {
  given = data;
}

const loads = new Map();
function load(url, isFresh = false) {
  if (isFresh || !loads.has(url)) {
    loads.set(url, new Promise((done, fail) => {
      const script = make("script", {src: isFresh ? `${url}?${Date.now()}` : url});
      script.onload = () => {
        script.remove();
        done(given);
      };
      script.onerror = () => {
        script.remove();
        loads.delete(url);
        fail(new Error(`${url} cannot be loaded`));
      };
      document.head.append(script);
    }));
  }
  return loads.get(url);
}

// What is shown stands in the address, so that a link leads there.
function told() {
  return new URLSearchParams(location.hash.slice(1));
}

function remember(changes) {
  const all = told();
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined || value === false) all.delete(name);
    else all.set(name, value);
  }
  history.replaceState(null, "", `#${all}`);
}

const tip = document.getElementById("tip");

// lines: texts, or [name, text, class of a key] for a row of a table.
function showTip(x, y, lines) {
  tip.replaceChildren(...lines.filter(Boolean).map((line) => Array.isArray(line)
    ? make("div", {class: "pair"}, make("span", {class: line[2] || ""}, line[0]), make("b", {}, line[1]))
    : make("div", {}, line)));
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  const left = Math.min(x + 14, document.documentElement.clientWidth - width - 8);
  const below = y + 18;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + height > innerHeight ? Math.max(4, y - height - 12) : below}px`;
}

function showTipAt(element, lines) {
  const box = element.getBoundingClientRect();
  showTip(box.left + box.width / 2 - 14, box.bottom - 10, lines);
}

function hideTip() {
  tip.hidden = true;
}

// Shows `lines()` for the pointer, for a touch, and for the keyboard's focus.
function explain(element, lines) {
  element.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, lines()));
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", () => {
    if (element.matches(":focus-visible")) showTipAt(element, lines());
  });
  element.addEventListener("blur", hideTip);
  element.addEventListener("click", () => showTipAt(element, lines()));
}

addEventListener("wheel", hideTip, {passive: true});
addEventListener("touchmove", hideTip, {passive: true});

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

const tip = document.getElementById("tip");

// lines: texts, or [name, text] for a row of a table.
function showTip(event, lines) {
  tip.replaceChildren(...lines.filter(Boolean).map((line) => Array.isArray(line)
    ? make("div", {class: "pair"}, make("span", {class: line[2] || ""}, line[0]), make("b", {}, line[1]))
    : make("div", {}, line)));
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - width - 8);
  const below = event.clientY + 18;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + height > innerHeight ? Math.max(4, event.clientY - height - 12) : below}px`;
}

function hideTip() {
  tip.hidden = true;
}

addEventListener("scroll", hideTip, {passive: true, capture: true});

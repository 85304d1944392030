// Numbers of curves under the pointer or the arrow keys, in all charts with the same axis at once.

let charts = [];

// Makes the charts of the page that are not yet; those that were replaced are forgotten.
function startCharts() {
  charts = charts.filter((chart) => chart.plot.isConnected);
  const known = new Set(charts.map((chart) => chart.plot));
  for (const plot of document.querySelectorAll("svg[data-chart]")) {
    if (!known.has(plot)) charts.push(startChart(plot));
  }
}

function startChart(plot) {
  const data = JSON.parse(plot.dataset.chart);
  const line = draw("line", {class: "cursor", y1: data.box[2], y2: data.box[3], visibility: "hidden"});
  const marks = data.series.map((_, place) => draw("circle", {class: `mark c${place % 8}`, r: 3.2, visibility: "hidden"}));
  plot.append(line, ...marks);
  const places = [...new Set(data.series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
  const chart = {plot, data, line, marks, places, at: null};
  if (!places.length) return chart;
  plot.setAttribute("tabindex", "0");
  plot.addEventListener("pointermove", (event) => pointAll(chart, under(chart, event), event.clientX, event.clientY));
  plot.addEventListener("pointerleave", unpointAll);
  plot.addEventListener("blur", unpointAll);
  plot.addEventListener("keydown", (event) => {
    const by = {ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity}[event.key];
    if (by) {
      event.preventDefault();
      const now = chart.at === null ? (by > 0 ? -1 : places.length) : places.indexOf(chart.at);
      chart.at = places[Math.min(places.length - 1, Math.max(0, now + by))];
      const frame = plot.getBoundingClientRect();
      pointAll(chart, chart.at, frame.left + across(chart, chart.at) / plot.viewBox.baseVal.width * frame.width, frame.top + 20);
    } else if (event.key === "Enter" && chart.at !== null) goToStep(chart, chart.at);
  });
  plot.addEventListener("click", (event) => goToStep(chart, under(chart, event)));
  return chart;
}

function goToStep(chart, x) {
  if (chart.data.x === "step") document.dispatchEvent(new CustomEvent("step", {detail: x}));
}

function across({data}, x) {
  return data.box[0] + (x - data.range[0]) / (data.range[1] - data.range[0]) * (data.box[1] - data.box[0]);
}

function up({data}, y) {
  return data.box[3] - (y - data.range[2]) / (data.range[3] - data.range[2]) * (data.box[3] - data.box[2]);
}

// Returns the place of a chart that is nearest to the pointer.
function under(chart, event) {
  const frame = chart.plot.getBoundingClientRect();
  const at = (event.clientX - frame.left) / frame.width * chart.plot.viewBox.baseVal.width;
  const {box, range} = chart.data;
  const x = range[0] + (at - box[0]) / (box[1] - box[0]) * (range[1] - range[0]);
  return chart.places.reduce((best, value) => Math.abs(value - x) < Math.abs(best - x) ? value : best);
}

function pointAll(chart, x, clientX, clientY) {
  for (const other of charts) {
    if (other.data.x === chart.data.x && other.places.includes(x)) point(other, x);
    else unpoint(other);
  }
  showTip(clientX, clientY, chartLines(chart, x));
}

function unpointAll() {
  charts.forEach(unpoint);
  hideTip();
}

function point(chart, x) {
  let floor = 0;
  const at = across(chart, x);
  chart.line.setAttribute("x1", at);
  chart.line.setAttribute("x2", at);
  chart.line.setAttribute("visibility", "visible");
  chart.data.series.forEach((series, place) => {
    const found = series.points.find((p) => p[0] === x);
    chart.marks[place].setAttribute("visibility", found ? "visible" : "hidden");
    if (!found) return;
    const y = chart.data.stacked ? floor += found[1] : found[1];
    chart.marks[place].setAttribute("cx", at);
    chart.marks[place].setAttribute("cy", up(chart, y));
  });
}

function unpoint(chart) {
  for (const mark of [chart.line, ...chart.marks]) mark.setAttribute("visibility", "hidden");
}

function chartLines(chart, x) {
  const lines = chart.data.series.map((series, place) => {
    const found = series.points.find((p) => p[0] === x);
    if (!found) return null;
    const band = (series.bands || []).find((b) => b[0] === x);
    const interval = band ? ` [${number(band[1])}, ${number(band[2])}]` : "";
    return [series.name, number(found[1], 4) + interval, `key c${place % 8}`];
  });
  return [`${chart.data.x} ${number(x)}`, ...(chart.data.stacked ? lines.reverse() : lines)];
}

// Numbers of curves under the pointer, in all charts with the same axis at once.

const charts = [...document.querySelectorAll("svg[data-chart]")].map((plot) => {
  const data = JSON.parse(plot.dataset.chart);
  const line = draw("line", {class: "cursor", y1: data.box[2], y2: data.box[3], visibility: "hidden"});
  plot.append(line);
  const marks = data.series.map((_, place) =>
    draw("circle", {class: `mark c${place % 8}`, r: 3.2, visibility: "hidden"}));
  plot.append(...marks);
  return {plot, data, line, marks, places: [...new Set(data.series.flatMap((s) => s.points.map((p) => p[0])))]};
});

function across({data}, x) {
  return data.box[0] + (x - data.range[0]) / (data.range[1] - data.range[0]) * (data.box[1] - data.box[0]);
}

function up({data}, y) {
  return data.box[3] - (y - data.range[2]) / (data.range[3] - data.range[2]) * (data.box[3] - data.box[2]);
}

function nearest(values, x) {
  return values.reduce((best, value) => Math.abs(value - x) < Math.abs(best - x) ? value : best);
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

function rows(chart, x) {
  const lines = chart.data.series.map((series, place) => {
    const found = series.points.find((p) => p[0] === x);
    if (!found) return null;
    const band = (series.bands || []).find((b) => b[0] === x);
    const interval = band ? ` [${number(band[1])}, ${number(band[2])}]` : "";
    return [series.name, number(found[1], 4) + interval, `key c${place % 8}`];
  });
  return [`${chart.data.x} ${number(x)}`, ...(chart.data.stacked ? lines.reverse() : lines)];
}

for (const chart of charts) {
  if (!chart.places.length) continue;
  chart.plot.addEventListener("pointermove", (event) => {
    const frame = chart.plot.getBoundingClientRect();
    const at = (event.clientX - frame.left) / frame.width * chart.plot.viewBox.baseVal.width;
    const {box, range} = chart.data;
    const x = nearest(chart.places, range[0] + (at - box[0]) / (box[1] - box[0]) * (range[1] - range[0]));
    for (const other of charts) {
      if (other.data.x === chart.data.x && other.places.includes(x)) point(other, x);
      else unpoint(other);
    }
    showTip(event, rows(chart, x));
  });
  chart.plot.addEventListener("pointerleave", () => {
    charts.forEach(unpoint);
    hideTip();
  });
  if (chart.data.x === "step") {
    chart.plot.addEventListener("click", (event) => {
      const frame = chart.plot.getBoundingClientRect();
      const at = (event.clientX - frame.left) / frame.width * chart.plot.viewBox.baseVal.width;
      const {box, range} = chart.data;
      const x = nearest(chart.places, range[0] + (at - box[0]) / (box[1] - box[0]) * (range[1] - range[0]));
      document.dispatchEvent(new CustomEvent("step", {detail: x}));
    });
  }
}

"use strict";
// The page of one run: fills the frames that its HTML holds from the data embedded in it.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function scoresByPosition() {
  let metric = data.metrics[0];
  const redraw = lineChart(byId("position"), () => ({
    title: `${metric.label} by ${metric.axis}`,
    x: { label: metric.axis, format: short, exact: (v) => v.toFixed(0), log: metric.trained && 2, shade: metric.trained },
    y: { label: `${metric.label} ${metric.arrow}`, format: short, log: metric.log, limits: metric.limits },
    series: data.series.filter((s) => s.shown).map((s) => ({ ...s, lines: s.curves[metric.key] })),
  }));
  const options = data.metrics.map((m) => [m.key, `${m.label} ${m.arrow}`, m.meaning]);
  choice(byId("metric"), "metric", "metric", options, metric.key, (key) => {
    metric = data.metrics.find((m) => m.key === key);
    redraw();
  });
  legend(byId("position-legend"), data.series, redraw);
}

function learning() {
  const lines = (column) => data.training.map((seed) => seed.points.map((p) => [p[0], p[column]]));
  lineChart(byId("training"), () => ({
    title: "training and validation loss by training tokens",
    x: { label: "training tokens", format: short },
    y: { label: `${data.loss} ↓`, format: short, limits: [0, Infinity] },
    series: [
      { name: "training", colour: 1, dash: DASHES[1], width: 1.6, lines: lines(1) },
      { name: "validation", colour: 0, width: 2.4, marker: "circle", lines: lines(2) },
    ],
  }));
}

function instances() {
  const { metric, total, names, short } = data.strips;
  const label = data.metrics.find((m) => m.key === metric).label;
  let instance = data.strips.instances[0];
  let difference = names.length === 1;
  const shown = names.map(() => true);
  const explain = explainer(short);
  const host = byId("strips");
  const redraw = keepDrawn(host, (width) => {
    const strips = [{ title: "truth", kind: "truth" }];
    names.forEach((name, model) => {
      if (!shown[model]) return;
      strips.push({ title: name, kind: "model", model });
      if (difference) strips.push({ title: `${name} − truth`, kind: "difference", model });
    });
    const perLine = Math.max(12, Math.floor((width - GUTTER - 2) / CELL));
    return html("div", {}, breakLines(instance.boundary, perLine).map((line) => stripLine(instance, line, strips, explain)));
  });
  const say = () => {
    const scores = instance.scores.map((s, i) => (names.length > 1 ? `${short[i]}: ${s.toFixed(3)}` : s.toFixed(3))).join(", ");
    const strings = instance.boundary.filter(Boolean).length + 1;
    const parts = strings > 1 ? ` in ${strings} parts` : "";
    const omitted = instance.omitted ? ` Rows for the ${instance.rows.length} tokens of most weight; ${instance.omitted.toLocaleString("en")} are left out.` : "";
    const standing = scores ? `, ${instance.why} of ${total} by ${label}: ${scores}` : `: no position counts for ${label}`;
    byId("about").textContent = `${data.split} instance ${instance.index}${standing}. ${instance.tokens.length} tokens${parts}.${omitted}`;
  };
  const controls = byId("strip-controls");
  const options = data.strips.instances.map((one, i) => [String(i), `${one.why} (${one.index})`]);
  choice(controls, "instance", "instance", options, "0", (key) => {
    instance = data.strips.instances[Number(key)];
    say();
    redraw();
  });
  const box = (name, on, changed) => {
    const input = html("input", { type: "checkbox" });
    input.checked = on;
    input.addEventListener("change", () => {
      changed(input.checked);
      redraw();
    });
    add(controls, html("label", {}, input, name));
  };
  if (names.length > 1) short.forEach((name, i) => box(name, true, (on) => (shown[i] = on)));
  box("difference", difference, (on) => (difference = on));
  for (const [id, rgb] of [["scale-mass", "--mass"], ["scale-more", "--more"], ["scale-less", "--less"]]) byId(id).prepend(shadeScale(rgb));
  say();
}

scoresByPosition();
if (data.training.some((seed) => seed.points.length)) learning();
if (data.strips) instances();
if (data.texts) runningTexts(data.texts, data.metrics.find((m) => m.key === data.texts.metric).label);

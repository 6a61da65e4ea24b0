"use strict";
// An instance as strips: a column for each position of the context, a row for each symbol, the darker the more probable.

const GUTTER = 34;
const CELL = 12;
const BARS = 20;

/** Paths of the cells of one strip, one for each of 24 shades. values(t) -> row of thousandths, or [] where nothing is scored. */
function shades(columns, values, rowHeight, top, rgb) {
  const paths = Array.from({ length: 25 }, () => "");
  columns.forEach((t, column) => {
    values(t).forEach((value, row) => {
      const shade = Math.round(24 * (Math.min(1000, value) / 1000) ** 0.7);
      if (shade > 0) paths[shade] += `M${GUTTER + column * CELL},${top + row * rowHeight}h${CELL}v${rowHeight}h${-CELL}z`;
    });
  });
  return paths.map((d, shade) => d && svg("path", { d, fill: `rgba(var(${rgb}),${(shade / 24).toFixed(3)})` }));
}

function outline(column, row, rowHeight, top, stroke, width) {
  const inset = width / 2;
  return svg("rect", {
    x: GUTTER + column * CELL + inset, y: top + row * rowHeight + inset, width: CELL - width, height: rowHeight - width,
    fill: "none", stroke, "stroke-width": width,
  });
}

/** Breaks L positions into lines of at most n, of like length: after a string's end where one is near, else anywhere. */
function breakLines(boundary, n) {
  const lines = [];
  let from = 0;
  while (from < boundary.length) {
    const rest = boundary.length - from;
    const even = from + Math.ceil(rest / Math.ceil(rest / n));
    let to = even;
    for (let end = from + 1; even < boundary.length && end <= Math.min(from + n, boundary.length - 1); end++) {
      const near = Math.abs(end - even) <= 0.3 * n;
      if (boundary[end - 1] && near && (to === even || Math.abs(end - even) < Math.abs(to - even))) to = end;
    }
    lines.push([from, to]);
    from = to;
  }
  return lines;
}

/** One line of an instance. strips: [{title, kind, model}], drawn below one another. */
function stripLine(instance, [from, to], strips, explain) {
  const rows = instance.rows.length;
  const rowHeight = rows <= 12 ? 12 : rows <= 24 ? 10 : 8;
  const columns = Array.from({ length: to - from }, (_, i) => from + i);
  const width = GUTTER + columns.length * CELL + 1;
  const centre = (column) => GUTTER + (column + 0.5) * CELL;
  const root = svg("svg", { tabindex: 0, role: "group", class: "strip", "aria-label": `positions ${from} to ${to - 1}` });
  const back = svg("g");
  const titles = svg("g"); // above the lines between strings
  add(root, back);
  columns.forEach((t, i) => {
    if (t % 10 === 0) add(root, svg("text", { x: centre(i), y: 10, "text-anchor": "middle", class: "tiny" }, String(t)));
    const sign = shorten(instance.tokens[t], instance.tokens[t].length > 2 ? 2 : 3);
    add(root, svg("text", { x: centre(i), y: 25, "text-anchor": "middle", class: instance.boundary[t] ? "token" : "token strong" }, sign));
  });
  let y = 32;
  for (const strip of strips) {
    add(titles, svg("text", { x: GUTTER, y: y + 11, class: "strong halo" }, strip.title));
    y += 17;
    const top = y;
    const height = rows * rowHeight;
    const model = instance.models[strip.model];
    add(back, svg("rect", { x: GUTTER, y: top, width: columns.length * CELL, height, class: "ground" }));
    if (strip.kind === "difference") {
      const difference = (sign) => (t) => model.p[t].map((p, row) => Math.max(0, sign * (p - instance.truth[t][row])));
      add(root, shades(columns, difference(1), rowHeight, top, "--more"), shades(columns, difference(-1), rowHeight, top, "--less"));
    } else {
      const p = strip.kind === "truth" ? instance.truth : model.p;
      add(root, shades(columns, (t) => p[t], rowHeight, top, "--mass"));
    }
    instance.rows.forEach((name, row) => {
      if (row > 0) add(root, svg("line", { class: "row", x1: GUTTER, x2: width - 1, y1: top + row * rowHeight, y2: top + row * rowHeight }));
      const at = { x: GUTTER - 6, y: top + (row + 0.5) * rowHeight + 3.5, "text-anchor": "end", class: "tiny" };
      if (rows <= 24 || row % 2 === 0) add(root, svg("text", at, shorten(name, 4)));
    });
    columns.forEach((t, i) => {
      if (!instance.scored[t]) {
        add(root, svg("rect", { class: "unscored", x: GUTTER + i * CELL, y: top, width: CELL, height }));
      } else if (strip.kind !== "difference" && instance.row[t] >= 0) {
        add(root, outline(i, instance.row[t], rowHeight, top, "var(--ink)", 1));
      }
      const wrong = strip.kind === "model" && model.illegal[t];
      const row = wrong ? instance.rows.indexOf(wrong) : -1;
      if (row >= 0) add(root, outline(i, row, rowHeight, top, "var(--c0)", 2));
    });
    y += height;
    if (strip.kind === "model") y = errorBars(root, columns, instance, model, y, width);
    y += 5;
  }
  columns.forEach((t, i) => {
    if (instance.boundary[t]) add(root, svg("line", { class: "boundary", x1: centre(i), x2: centre(i), y1: 30, y2: y - 4 }));
  });
  const cursor = svg("rect", { class: "cursor", y: 13, width: CELL, height: y - 15, visibility: "hidden" });
  add(root, titles, cursor);
  root.setAttribute("viewBox", `0 0 ${width} ${y}`);
  root.setAttribute("width", width);
  root.setAttribute("height", y);
  let column = -1;
  const show = (clientX, clientY) => {
    cursor.setAttribute("x", GUTTER + column * CELL);
    cursor.setAttribute("visibility", "visible");
    showTip(clientX, clientY, ...explain(instance, from + column));
  };
  const leave = () => {
    cursor.setAttribute("visibility", "hidden");
    hideTip();
  };
  explore(root, {
    at(px, _, clientX, clientY) {
      column = Math.floor((px - GUTTER) / CELL);
      if (column >= 0 && column < columns.length) show(clientX, clientY);
      else leave();
    },
    step(n) {
      column = Math.max(0, Math.min(columns.length - 1, column + n));
      const box = root.getBoundingClientRect();
      show(box.left + (centre(column) * box.width) / width, box.top + box.height / 2);
    },
    leave,
  });
  return root;
}

/** Below a model's strip: a cross where its most likely symbol is illegal, and its TVD as bars. */
function errorBars(root, columns, instance, model, y, width) {
  const base = y + 13 + BARS;
  add(root, svg("text", { x: GUTTER - 6, y: base - 5, "text-anchor": "end", class: "tiny" }, "TVD"));
  columns.forEach((t, i) => {
    const x = GUTTER + i * CELL;
    if (model.illegal[t] !== undefined) {
      add(root, svg("path", { class: "illegal", d: `M${x + 3},${y + 3}l6,6m0,-6l-6,6` }));
    }
    const height = model.tvd[t] * BARS;
    if (height > 0) add(root, svg("rect", { class: "bar", x: x + 2, y: base - height, width: CELL - 4, height }));
  });
  add(root, svg("line", { class: "grid", x1: GUTTER, x2: width - 1, y1: base - BARS - 0.5, y2: base - BARS - 0.5 }));
  add(root, svg("line", { class: "axis", x1: GUTTER, x2: width - 1, y1: base + 0.5, y2: base + 0.5 }));
  return base + 4;
}

/** What is known of one position, for the tooltip. names: of the models. */
function explainer(names) {
  const decimal = (thousandths) => (thousandths / 1000).toFixed(3);
  return (instance, t) => {
    const begin = instance.boundary.lastIndexOf(1, t - 1) + 1;
    const number = instance.boundary.slice(0, t).filter(Boolean).length + 1;
    const where = instance.boundary[t] ? "separator" : `string ${number}, symbol ${t - (t > 0 ? begin : 0) + 1}`;
    const head = html("div", {}, html("b", {}, `position ${t}: ${instance.tokens[t]}`), ` (${where})`);
    if (!instance.scored[t]) return [head, html("div", { class: "soft" }, "not scored")];
    const rows = instance.rows
      .map((name, row) => ({ name, row, truth: instance.truth[t][row], models: instance.models.map((m) => m.p[t][row]) }))
      .filter((r) => r.truth >= 5 || Math.max(...r.models) >= 5)
      .sort((a, b) => b.truth - a.truth || b.models[0] - a.models[0])
      .slice(0, 12)
      .map((r) => [r.name + (r.row === instance.row[t] ? " ← sampled" : ""), decimal(r.truth), ...r.models.map(decimal)]);
    const line = (label, value) => [label, "", ...instance.models.map(value)];
    rows.push(line("TVD", (m) => m.tvd[t].toFixed(3)), line("NLL (nats)", (m) => m.nll[t].toFixed(3)));
    if (instance.models.some((m) => m.illegal[t] !== undefined)) {
      rows.push(line("illegal argmax", (m) => (m.illegal[t] !== undefined ? `× ${m.illegal[t]}` : "")));
    }
    return [head, tipTable(rows, ["", "truth", ...names])];
  };
}

/** The scale of a strip's shades, as a sample beside its words. */
function shadeScale(rgb) {
  const steps = [0, 20, 100, 250, 500, 1000];
  const cells = steps.map((value, i) => {
    const shade = Math.round(24 * (value / 1000) ** 0.7) / 24;
    return svg("rect", { x: i * 16, y: 0, width: 16, height: 11, fill: `rgba(var(${rgb}),${shade.toFixed(3)})`, stroke: "var(--rule)", "stroke-width": 0.5 });
  });
  return svg("svg", { viewBox: "-1 -1 98 13", width: 98, height: 13, "aria-hidden": "true" }, cells);
}

"use strict";
// Line charts and scatter plots as SVG. Text is set as text, never as HTML, so that no name can become markup.

const COLOURS = 7;
const DASHES = ["", "7 3", "2 2.5", "8 3 2 3", "5 2 1.5 2 1.5 2", "12 4"];
const MARKERS = ["circle", "square", "triangle", "diamond", "down", "cross", "plus", "star"];

function add(parent, ...children) {
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) parent.append(child);
  }
  return parent;
}

/** An HTML element; strings among the children become text. */
function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return add(element, ...children);
}

/** An SVG element. */
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return add(element, ...children);
}

function colour(index) {
  return `var(--c${index % COLOURS})`;
}

function shorten(text, length) {
  const letters = [...text];
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : text;
}

/** 66816 -> "66.8k"; three significant digits are enough on an axis. */
function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= size) return +(value / size).toPrecision(3) + unit;
  }
  return String(+value.toPrecision(3));
}

function bytes(value) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value} B`;
}

/** Round values between low and high, about `count` of them. */
function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= high / step + 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

/** 1, 2, 5, 10, ... between low and high; fewer where they would crowd, finer where they would be too few. */
function logTicks(low, high, count) {
  for (const digits of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]]) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
      for (const digit of digits) {
        const value = +(digit * 10 ** e).toPrecision(6);
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    if (found.length >= Math.min(3, count)) {
      const stride = Math.ceil(found.length / Math.max(2, count));
      return found.filter((_, i) => i % stride === 0);
    }
  }
  return linearTicks(low, high, count);
}

/** Powers of two between low and high, about `count` of them. */
function binaryTicks(low, high, count) {
  const first = Math.ceil(Math.log2(low) - 1e-9);
  const last = Math.floor(Math.log2(high) + 1e-9);
  const stride = Math.max(1, Math.ceil((last - first + 1) / Math.max(2, count)));
  const found = [];
  for (let e = first; e <= last; e += stride) found.push(2 ** e);
  return found;
}

/** A map from values to pixels; log is false, true, or 2 for ticks at powers of two. */
function scale(low, high, from, to, log) {
  const f = log ? Math.log : (v) => v;
  const span = f(high) - f(low) || 1;
  const map = (value) => from + ((f(value) - f(low)) / span) * (to - from);
  map.low = low;
  map.high = high;
  map.ticks = (count) => (log === 2 ? binaryTicks : log ? logTicks : linearTicks)(low, high, count);
  return map;
}

/** [low, high] around the values with some air, kept within the range the quantity can have. */
function around(values, log, limits = [-Infinity, Infinity]) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (!values.length) [low, high] = log ? [1, 10] : [0, 1];
  if (log) {
    const air = Math.max(1.08, (high / low) ** 0.06);
    return [low / air, high * air];
  }
  const air = (high - low || Math.abs(high) || 1) * 0.06;
  return [Math.max(limits[0], low - air), Math.min(limits[1], high + air)];
}

/** Grid, ticks and titles. axis = {label, format}; the frame is {left, right, top, bottom} in pixels. */
function drawAxes(parent, frame, x, y, xAxis, yAxis) {
  const xTicks = x.ticks(Math.max(2, (frame.right - frame.left) / 75));
  const yTicks = y.ticks(Math.max(2, (frame.bottom - frame.top) / 45));
  for (const value of yTicks) {
    const at = Math.round(y(value)) + 0.5;
    add(parent, svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: at, y2: at }));
    add(parent, svg("text", { x: frame.left - 7, y: at + 4, "text-anchor": "end" }, yAxis.format(value)));
  }
  for (const value of xTicks) {
    const at = Math.round(x(value)) + 0.5;
    add(parent, svg("line", { class: "axis", x1: at, x2: at, y1: frame.bottom, y2: frame.bottom + 4 }));
    add(parent, svg("text", { x: at, y: frame.bottom + 17, "text-anchor": "middle" }, xAxis.format(value)));
  }
  add(parent, svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom + 0.5, y2: frame.bottom + 0.5 }));
  add(parent, svg("text", { x: frame.left, y: 12, class: "strong" }, yAxis.label));
  const middle = { x: (frame.left + frame.right) / 2, y: frame.bottom + 35, "text-anchor": "middle", class: "strong" };
  add(parent, svg("text", middle, xAxis.label));
}

/** The path of a marker of radius r around (x, y). */
function markerPath(shape, x, y, r) {
  const polygon = (corners) => "M" + corners.map(([a, b]) => `${(x + a * r).toFixed(1)},${(y + b * r).toFixed(1)}`).join("L") + "Z";
  const t = 0.36;
  switch (shape) {
    case "square": return polygon([[-0.88, -0.88], [0.88, -0.88], [0.88, 0.88], [-0.88, 0.88]]);
    case "triangle": return polygon([[0, -1.15], [1.1, 0.8], [-1.1, 0.8]]);
    case "down": return polygon([[0, 1.15], [1.1, -0.8], [-1.1, -0.8]]);
    case "diamond": return polygon([[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]]);
    case "plus": return polygon([[-t, -1.1], [t, -1.1], [t, -t], [1.1, -t], [1.1, t], [t, t], [t, 1.1], [-t, 1.1], [-t, t], [-1.1, t], [-1.1, -t], [-t, -t]]);
    case "cross": {
      const c = Math.SQRT1_2;
      const arms = [[-t, -1.15], [t, -1.15], [t, -t], [1.15, -t], [1.15, t], [t, t], [t, 1.15], [-t, 1.15], [-t, t], [-1.15, t], [-1.15, -t], [-t, -t]];
      return polygon(arms.map(([a, b]) => [(a - b) * c, (a + b) * c]));
    }
    case "star": return polygon([...Array(10).keys()].map((i) => {
      const length = i % 2 ? 0.55 : 1.3;
      return [length * Math.sin((i * Math.PI) / 5), -length * Math.cos((i * Math.PI) / 5)];
    }));
    default: return `M${(x - r).toFixed(1)},${y.toFixed(1)}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`;
  }
}

function marker(style, x, y, r) {
  const d = markerPath(style.marker || "circle", x, y, style.hollow ? r - 0.6 : r);
  const paint = style.hollow
    ? { fill: "var(--paper)", stroke: colour(style.colour), "stroke-width": 1.7 }
    : { fill: colour(style.colour), stroke: "var(--paper)", "stroke-width": 1 };
  return svg("path", { d, ...paint });
}

/** The sample of a series' line and marker in a legend. */
function swatch(style) {
  const line = { x1: 0, x2: 30, y1: 6, y2: 6, stroke: colour(style.colour), "stroke-width": style.width || 1.6, "stroke-dasharray": style.dash || "" };
  return svg("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" }, svg("line", line), style.marker ? marker(style, 15, 6, 4) : null);
}

const drawn = [];

/** Draws what has come into sight, or has another width than when it was drawn. */
function drawShown() {
  drawn.forEach((check) => check());
}

/** Draws now and whenever the host's width changes; a hidden host when it is shown. Returns what draws again. */
function keepDrawn(host, draw) {
  let width = 0;
  const redraw = () => {
    if (host.clientWidth > 0) {
      width = host.clientWidth;
      host.replaceChildren(draw(width, host.clientHeight));
    }
  };
  const check = () => host.clientWidth !== width && redraw();
  new ResizeObserver(check).observe(host);
  drawn.push(check);
  redraw();
  return redraw;
}

function canvas(width, height, title) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "group", "aria-label": title });
}

/* ---------- the tooltip, one for the page ---------- */

const tip = html("div", { id: "tip", role: "status", hidden: "" });
document.body.append(tip);

function showTip(x, y, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
  const top = Math.min(Math.max(8, y - box.height / 2), innerHeight - box.height - 8);
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

function hideTip() {
  tip.hidden = true;
}
addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());

/** A small table for the tooltip: rows of cells, which are strings or elements. */
function tipTable(rows, head) {
  const table = html("table");
  if (head) add(table, html("thead", {}, html("tr", {}, head.map((cell) => html("th", {}, cell)))));
  return add(table, html("tbody", {}, rows.map((cells) => html("tr", {}, cells.map((cell) => html("td", {}, cell))))));
}

/**
 * Calls `move(step or pixel)` as the pointer or the arrow keys ask, and `leave` when they are gone.
 * at(x) picks the place nearest to x pixels; step(n) goes n places on.
 */
function explore(element, { at, step, leave }) {
  const local = (event) => {
    const box = element.getBoundingClientRect();
    return [((event.clientX - box.left) * element.viewBox.baseVal.width) / box.width, ((event.clientY - box.top) * element.viewBox.baseVal.height) / box.height];
  };
  element.addEventListener("pointermove", (event) => at(...local(event), event.clientX, event.clientY));
  element.addEventListener("pointerdown", (event) => at(...local(event), event.clientX, event.clientY));
  element.addEventListener("pointerleave", leave);
  element.addEventListener("blur", leave);
  element.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (steps) {
      event.preventDefault();
      step(steps);
    }
  });
}

/* ---------- line charts ---------- */

/** Labels at the ends of the lines, moved apart so that none covers another. Each is {y, text, colour}. */
function spread(labels, top, bottom, gap) {
  const sorted = [...labels].sort((a, b) => a.y - b.y);
  let at = top - gap;
  for (const label of sorted) {
    label.at = Math.max(label.y, at + gap);
    at = label.at;
  }
  let below = bottom + gap;
  for (const label of sorted.reverse()) {
    label.at = Math.min(label.at, below - gap);
    below = label.at;
  }
  return sorted;
}

/**
 * spec() -> {title, x: {label, format, log, shade}, y: {label, format, log, limits, holds}, series}, asked anew at each drawing.
 * With y.log the axis is logarithmic where the values are positive and far apart.
 * A series is {name, colour, dash, width, marker, lines: [[[x, y], ...], ...]}; its lines share a name, as seeds do.
 */
function lineChart(host, spec) {
  return keepDrawn(host, (width, height) => {
    const { title, x: xAxis, y: yAxis, series } = spec();
    const root = canvas(width, height, title);
    const all = series.flatMap((s) => s.lines.flat());
    const ys = [...all.map((p) => p[1]), ...(yAxis.holds || [])];
    const log = yAxis.log && Math.min(...ys) > 0 && Math.max(...ys) > 4 * Math.min(...ys);
    const labelled = width > 620;
    const room = Math.min(190, 22 + 6.9 * Math.max(4, ...series.map((s) => Math.min(24, [...s.name].length))));
    const frame = { left: 46, right: width - (labelled ? room : 10), top: 26, bottom: height - 44 };
    const xs = all.map((p) => p[0]);
    const [low, high] = xAxis.log ? around(xs, true) : [Math.min(0, ...xs), Math.max(1, ...xs)];
    const x = scale(low, high, frame.left, frame.right, xAxis.log);
    const y = scale(...around(ys, log, yAxis.limits), frame.bottom, frame.top, log);
    if (xAxis.shade) {  // from the smallest value up to this one
      const from = x(Math.min(...xs));
      add(root, svg("rect", { class: "shade", x: from, width: x(xAxis.shade) - from, y: frame.top, height: frame.bottom - frame.top }));
    }
    drawAxes(root, frame, x, y, xAxis, yAxis);
    const ends = [];
    for (const s of series) {
      for (const line of s.lines) {
        const d = "M" + line.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join("L");
        const style = { fill: "none", stroke: colour(s.colour), "stroke-width": s.width || 1.6, "stroke-dasharray": s.dash || "", "stroke-linejoin": "round" };
        if (line.length > 1) add(root, svg("path", { d, ...style }));
        if (s.marker) {
          const every = Math.max(1, Math.ceil(line.length / 7));
          line.forEach((p, i) => (i % every === 0 || line.length < 9) && add(root, marker(s, x(p[0]), y(p[1]), 3.6)));
        }
      }
      const last = s.lines.map((line) => line[line.length - 1]).filter(Boolean);
      if (last.length) {
        const mean = last.reduce((sum, p) => sum + y(p[1]), 0) / last.length;
        ends.push({ x: Math.max(...last.map((p) => x(p[0]))), y: mean, text: s.name, colour: s.colour });
      }
    }
    if (labelled) {
      for (const end of spread(ends, frame.top, frame.bottom, 13.5)) {
        const from = frame.right + 4;
        add(root, svg("path", { d: `M${end.x + 2},${end.y}L${from},${end.y}L${from + 8},${end.at}`, fill: "none", stroke: colour(end.colour), "stroke-width": 0.8, opacity: 0.55 }));
        add(root, svg("text", { x: from + 11, y: end.at + 4, style: `fill:${colour(end.colour)}` }, shorten(end.text, 24)));
      }
    }
    const cursor = svg("line", { class: "axis", y1: frame.top, y2: frame.bottom, visibility: "hidden" });
    add(root, cursor);
    const places = [...new Set(xs)].sort((a, b) => a - b);
    let place = -1;
    const show = (clientX, clientY) => {
      const value = places[place];
      cursor.setAttribute("x1", x(value));
      cursor.setAttribute("x2", x(value));
      cursor.setAttribute("visibility", "visible");
      const rows = [];
      for (const s of series) {
        const near = s.lines.map((line) => nearest(line, value)).filter((p) => p && Math.abs(x(p[0]) - x(value)) < 12).map((p) => p[1]);
        if (near.length) rows.push([near[0], [swatch(s), shorten(s.name, 26), near.map((v) => v.toFixed(3)).join("  ")]]);
      }
      rows.sort((a, b) => b[0] - a[0]);
      const cells = rows.map(([, [line, name, values]]) => [add(html("span"), sized(line), " ", name), values]);
      showTip(clientX, clientY, html("b", {}, `${xAxis.label}: ${xAxis.exact ? xAxis.exact(value) : xAxis.format(value)}`), tipTable(cells));
    };
    explore(root, {
      at(px, _, clientX, clientY) {
        if (!places.length) return;
        place = places.reduce((best, value, i) => (Math.abs(x(value) - px) < Math.abs(x(places[best]) - px) ? i : best), 0);
        show(clientX, clientY);
      },
      step(n) {
        if (!places.length) return;
        place = Math.max(0, Math.min(places.length - 1, place + n));
        const box = root.getBoundingClientRect();
        show(box.left + (x(places[place]) * box.width) / width, box.top + box.height / 2);
      },
      leave() {
        cursor.setAttribute("visibility", "hidden");
        hideTip();
      },
    });
    return root;
  });
}

function sized(sample) {
  sample.setAttribute("width", 22);
  sample.setAttribute("height", 9);
  return sample;
}

function nearest(line, value) {
  return line.reduce((best, p) => (!best || Math.abs(p[0] - value) < Math.abs(best[0] - value) ? p : best), null);
}

/** A list of check boxes, one a series, each with a sample of its line; `changed` is called after `series.shown` is set. */
function legend(host, series, changed) {
  for (const s of series) {
    const box = html("input", { type: "checkbox" });
    box.checked = s.shown;
    box.addEventListener("change", () => {
      s.shown = box.checked;
      changed();
    });
    add(host, html("li", {}, html("label", { title: s.name }, box, swatch(s), html("span", { class: "name" }, s.name))));
  }
}

/** Calls `chosen(value)` when one of a group of radio buttons is taken, and makes the group. options: [[value, label, title], ...] */
function choice(host, name, caption, options, value, chosen) {
  const group = html("fieldset", { class: "choice" }, html("legend", { class: "hidden" }, caption));
  for (const [key, text, title] of options) {
    const input = html("input", { type: "radio", name, value: key });
    input.checked = key === value;
    input.addEventListener("change", () => chosen(key));
    add(group, html("label", title ? { title } : {}, input, html("span", {}, text)));
  }
  add(host, group);
}

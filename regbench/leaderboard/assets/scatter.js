"use strict";
// Scatter plots: one mark an entry, one level line a baseline.

const BAND = 66; // for entries whose x is no number, such as a state that grows with the context

/** Where a label fits beside its point without touching another label, a point or the frame; null where nowhere. */
function placeLabel(x, y, width, frame, taken) {
  const height = 12;
  for (const [left, top] of [[x + 8, y - 6], [x - 8 - width, y - 6], [x - width / 2, y - 20], [x - width / 2, y + 8]]) {
    const box = { left, top, right: left + width, bottom: top + height };
    const inside = box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom;
    const free = taken.every((t) => box.right < t.left || box.left > t.right || box.bottom < t.top || box.top > t.bottom);
    if (inside && free) {
      taken.push(box);
      return box;
    }
  }
  return null;
}

/**
 * spec() -> {title, x: {label, format, missing}, y: {label, format, log, limits}, points, levels}, asked anew at each drawing.
 * A point is {name, x, y, err, colour, marker, hollow, facts: [[what, text], ...]}, x null where it is `x.missing`; the first
 * points get their labels first. A level is {name, y, colour, dash}.
 */
function scatterPlot(host, spec) {
  return keepDrawn(host, (width, height) => {
    const { title, x: xAxis, y: yAxis, points, levels } = spec();
    const root = canvas(width, height, title);
    const missing = points.some((p) => p.x === null);
    const margin = Math.max(20, ...levels.map((l) => 16 + 6.6 * [...l.name].length));
    const frame = { left: 46, right: width - Math.min(margin, 96), top: 26, bottom: height - 44 };
    const plot = { ...frame, right: frame.right - (missing ? BAND : 0) };
    const ys = [...points.flatMap((p) => [p.y - p.err, p.y + p.err]), ...levels.map((l) => l.y)];
    const log = Math.min(...ys) > 0 && Math.max(...ys) > 4 * Math.min(...ys) && yAxis.log;
    const x = scale(...around(points.map((p) => p.x).filter((v) => v !== null), true), plot.left, plot.right, xAxis.log || true);
    const y = scale(...around(ys, log, yAxis.limits), plot.bottom, plot.top, log);
    drawAxes(root, plot, x, y, xAxis, yAxis);
    if (missing) {
      const middle = (plot.right + frame.right) / 2;
      add(root, svg("line", { class: "grid", x1: plot.right + 0.5, x2: plot.right + 0.5, y1: frame.top, y2: frame.bottom }));
      xAxis.missing.split("\n").forEach((line, i) => add(root, svg("text", { x: middle, y: frame.bottom + 17 + 13 * i, "text-anchor": "middle" }, line)));
    }
    const ends = levels.map((l) => ({ y: y(l.y), text: l.name, colour: l.colour, dash: l.dash }));
    for (const end of spread(ends, frame.top, frame.bottom, 13)) {
      const stroke = { stroke: colour(end.colour), "stroke-width": 1, fill: "none" };
      add(root, svg("line", { x1: frame.left, x2: frame.right, y1: end.y, y2: end.y, "stroke-dasharray": end.dash, ...stroke }));
      add(root, svg("path", { d: `M${frame.right},${end.y}l3,0L${frame.right + 8},${end.at}`, opacity: 0.55, ...stroke }));
      add(root, svg("text", { x: frame.right + 11, y: end.at + 4, style: `fill:${colour(end.colour)}` }, shorten(end.text, 13)));
    }
    const marks = points.map((p) => ({ ...p, px: p.x === null ? (plot.right + frame.right) / 2 : x(p.x), py: y(p.y) }));
    for (const m of [...marks].reverse()) {
      if (m.err > 0) add(root, svg("line", { x1: m.px, x2: m.px, y1: y(m.y - m.err), y2: y(m.y + m.err), stroke: colour(m.colour), "stroke-width": 1 }));
      add(root, marker(m, m.px, m.py, 5.2));
    }
    const taken = marks.map((m) => ({ left: m.px - 6, right: m.px + 6, top: m.py - 6, bottom: m.py + 6 }));
    for (const m of marks) {
      const name = shorten(m.name, 22);
      const box = placeLabel(m.px, m.py, 4 + 6.4 * [...name].length, frame, taken);
      if (box) add(root, svg("text", { x: (box.left + box.right) / 2, y: box.top + 10, "text-anchor": "middle", class: "strong halo" }, name));
    }
    const ring = svg("circle", { r: 9, fill: "none", stroke: "var(--focus)", "stroke-width": 2, visibility: "hidden" });
    add(root, ring);
    const order = [...marks].sort((a, b) => a.px - b.px || a.py - b.py);
    let place = -1;
    const leave = () => {
      ring.setAttribute("visibility", "hidden");
      hideTip();
    };
    const show = (m, clientX, clientY) => {
      ring.setAttribute("cx", m.px);
      ring.setAttribute("cy", m.py);
      ring.setAttribute("visibility", "visible");
      showTip(clientX, clientY, html("b", {}, m.name), tipTable(m.facts));
    };
    explore(root, {
      at(px, py, clientX, clientY) {
        const near = order.map((m, i) => [Math.hypot(m.px - px, m.py - py), i]).sort((a, b) => a[0] - b[0])[0];
        if (!near || near[0] > 28) return leave();
        place = near[1];
        return show(order[place], clientX, clientY);
      },
      step(n) {
        if (!order.length) return;
        place = Math.max(0, Math.min(order.length - 1, place + n));
        const box = root.getBoundingClientRect();
        const factor = box.width / width;
        show(order[place], box.left + order[place].px * factor, box.top + order[place].py * factor);
      },
      leave,
    });
    return root;
  });
}

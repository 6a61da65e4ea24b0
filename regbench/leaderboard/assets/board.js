"use strict";
// The page of the leaderboard: tables that sort and filter, and the charts of each track.

const data = JSON.parse(document.getElementById("data").textContent);

/* ---------- tables ---------- */

/** A cell's value: a number, or text; null where there is none. */
function cellValue(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.value;
  if (value === undefined) return cell.textContent.trim().toLowerCase();
  return value === "" ? null : Number(value);
}

/**
 * Sorts by the column whose head is pressed; pressed again, in the other order. Rows of equal value keep
 * the order of the ranking. Rows without a value stay at the end.
 */
function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const ranked = [...body.rows];
  const sort = (column) => {
    const head = heads[column];
    const first = head.dataset.first || "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = ranked.map((row) => [cellValue(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return a === b ? 0 : a < b ? -sign : sign;
    });
    body.append(...rows.map(([, row]) => row));
  };
  heads.forEach((head, column) => {
    const button = html("button", { type: "button", title: head.title }, ...head.childNodes);
    head.removeAttribute("title");
    head.replaceChildren(button);
    button.addEventListener("click", () => sort(column));
  });
}

/** Shows the rows that hold every word of the filter, in their cells or their `data-more`; the columns keep their widths. */
function makeFilterable(section) {
  const search = section.querySelector("input[type=search]");
  const baselines = section.querySelector("input[type=checkbox]");
  const count = section.querySelector(".count");
  const rows = [...section.querySelector(".board").tBodies[0].rows];
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let entries = 0;
    for (const row of rows) {
      const content = `${row.textContent} ${row.dataset.more || ""}`.toLowerCase();
      const isEntry = row.classList.contains("entry");
      const shown = words.every((word) => content.includes(word)) && (isEntry || baselines.checked);
      row.classList.toggle("out", !shown);
      if (shown && isEntry) entries += 1;
    }
    const total = rows.filter((row) => row.classList.contains("entry")).length;
    count.textContent = entries === total ? `${total} entries` : `${entries} of ${total} entries`;
  };
  search.addEventListener("input", filter);
  baselines.addEventListener("change", filter);
  filter();
}

/* ---------- charts ---------- */

/** How an entry is drawn: colour and shape by architecture, alike on every track; line and filling by which of its variants it is. */
function styleOf(entry) {
  const place = data.architectures.indexOf(entry.architecture);
  return {
    colour: place % COLOURS,
    marker: MARKERS[place % MARKERS.length],
    hollow: entry.variant % 2 === 1,
    dash: DASHES[entry.variant % DASHES.length],
    width: 2,
  };
}

function metricChoice(host, board, name, chosen) {
  const options = board.metrics.map((m) => [m.key, `${m.label} ${m.arrow}`, m.meaning]);
  choice(host, `${name}-${board.id}`, "metric", options, board.metrics[0].key, (key) => chosen(board.metrics.find((m) => m.key === key)));
}

function yAxisOf(metric) {
  return { label: `${metric.label} ${metric.arrow}`, format: short, log: metric.log, limits: metric.limits };
}

function scatterCharts(section, board) {
  const part = section.querySelector(".scatter");
  if (!part) return;
  let metric = board.metrics[0];
  const axes = {
    parameters: { label: "parameters", format: short, value: (v) => v.toLocaleString("en") },
    state: { label: "state (bytes)", log: 2, format: bytes, missing: "grows\nwith L", value: (v) => (v === null ? "grows with L" : bytes(v)) },
    speed: { label: "training speed (tokens/s)", format: short, value: (v) => `${v.toLocaleString("en")} tokens/s` },
  };
  // Where every state grows with the context there is nothing to draw against.
  const known = Object.entries(axes).filter(([key]) => board.entries.some((entry) => entry[key] !== null));
  for (const figure of part.querySelectorAll("[data-x]")) figure.parentElement.hidden = !known.some(([key]) => key === figure.dataset.x);
  const redraws = known.map(([key, axis]) =>
    scatterPlot(part.querySelector(`[data-x="${key}"]`), () => ({
      title: `${metric.label} against ${axis.label}`,
      x: axis,
      y: yAxisOf(metric),
      points: board.entries.map((entry) => {
        const [value, err] = entry.scores[metric.key];
        const facts = [
          ["rank", String(entry.rank)],
          [metric.label, `${value.toFixed(3)} ± ${err.toFixed(3)}`],
          ...Object.entries(axes).map(([k, a]) => [a.label, a.value(entry[k])]),
          ["machine", entry.machine],
        ];
        return { name: entry.name, x: entry[key], y: value, err, ...styleOf(entry), facts };
      }),
      levels: board.levels.map((level) => ({ ...level, y: level.scores[metric.key] })),
    })),
  );
  metricChoice(part.querySelector(".controls"), board, "scatter", (chosen) => {
    metric = chosen;
    redraws.forEach((redraw) => redraw());
  });
  const marks = part.querySelector(".marks");
  for (const architecture of [...new Set(board.entries.map((e) => e.architecture))].sort()) {
    const style = styleOf({ architecture, variant: 0 });
    add(marks, html("li", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, marker(style, 7, 7, 5)), architecture));
  }
}

function curveCharts(section, board) {
  const part = section.querySelector(".position");
  if (!part) return;
  let metric = board.metrics[0];
  const entries = board.entries.map((e, i) => ({ ...styleOf(e), name: e.name, shown: i < 5, curves: e.curves }));
  const series = [...entries, ...board.baselines];
  const redraw = lineChart(part.querySelector(".chart"), () => ({
    title: `${metric.label} by ${metric.axis}`,
    x: { label: metric.axis, format: String, exact: (v) => v.toFixed(0) },
    y: yAxisOf(metric),
    series: series.filter((s) => s.shown).map((s) => ({ ...s, lines: s.curves[metric.key] })),
  }));
  metricChoice(part.querySelector(".controls"), board, "position", (chosen) => {
    metric = chosen;
    redraw();
  });
  legend(part.querySelector(".legend"), series, redraw);
}

/* ---------- the page ---------- */

function trackChoice() {
  const host = document.getElementById("tracks");
  const sections = [...document.querySelectorAll(".track")];
  if (sections.length < 2) return;
  const show = (id) => {
    sections.forEach((section) => section.classList.toggle("current", section.id === id));
    drawShown();
  };
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const first = (target && target.closest(".track")) || sections[0];
  choice(host, "track", "track", sections.map((s) => [s.id, s.dataset.name, s.dataset.summary]), first.id, (id) => {
    show(id);
    history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  });
  show(first.id);
}

/** A link to a track shows it. A link to an entry shows its track, and opens its details. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const track = target && target.closest(".track");
  if (!track) return;
  if (!track.classList.contains("current")) {
    document.querySelector(`#tracks input[value="${CSS.escape(track.id)}"]`)?.click();
    history.replaceState(null, "", `#${encodeURIComponent(target.id)}`);
  }
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView({ block: "start" });
}

document.querySelectorAll(".board").forEach(makeSortable);
trackChoice();
for (const board of data.boards) {
  const section = document.getElementById(board.id);
  makeFilterable(section);
  scatterCharts(section, board);
  curveCharts(section, board);
}
addEventListener("hashchange", openTarget);
openTarget();

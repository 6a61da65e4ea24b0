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
      levels: board.baselines.filter((one) => one.level).map((one) => ({ ...one, y: one.scores[metric.key] })),
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

/** The x axis of curves; by size it is logarithmic, and the sizes of training are shaded. */
function sizesOf(label, trained) {
  return { label, format: trained ? (v) => v.toLocaleString("en") : String, exact: (v) => v.toFixed(0), log: trained && 2, shade: trained };
}

function curveCharts(section, board) {
  const part = section.querySelector(".position");
  if (!part) return;
  let metric = board.metrics[0];
  const entries = board.entries.map((e, i) => ({ ...styleOf(e), name: e.name, shown: i < 5, curves: e.curves }));
  const series = [...entries, ...board.baselines];
  const redraw = lineChart(part.querySelector(".chart"), () => ({
    title: `${metric.label} by ${metric.axis}`,
    x: sizesOf(metric.axis, metric.trained),
    y: yAxisOf(metric),
    series: series.filter((s) => s.shown).map((s) => ({ ...s, lines: s.curves[metric.key] })),
  }));
  metricChoice(part.querySelector(".controls"), board, "position", (chosen) => {
    metric = chosen;
    redraw();
  });
  legend(part.querySelector(".legend"), series, redraw);
}

/* ---------- the overview ---------- */

const FAMILIES = [...new Set(data.overview.lines.map((line) => line.family))].sort();

/** How a family is drawn. */
function lookOf(family) {
  const place = FAMILIES.indexOf(family);
  return { colour: place % COLOURS, marker: MARKERS[place % MARKERS.length] };
}

function markList(host, items) {
  host.replaceChildren(...items.map(([sample, name]) => html("li", {}, sample, name)));
}

/** The picture of an ability: reach against state, both logarithmic. Returns what shows another ability or group. */
function reachPicture(part) {
  let ability = data.overview.abilities[0];
  let group = "";
  const shown = () => data.overview.lines.filter((line) => ability.id in line.cells && isShown(line));
  const redraw = scatterPlot(part.querySelector(".reach"), () => ({
    title: `reach of ${ability.name} against state`,
    x: { label: "state at the longest context", log: 2, format: bytes, missing: "unknown" },
    y: { label: `reach (${ability.unit})${group && `, ${group}`}`, format: short, log: 2 },
    points: shown().map((line) => {
      const cell = line.cells[ability.id];
      const [size, words] = cell.reach[group];
      const state = cell.state === null ? "unknown" : bytes(cell.state) + (cell.grows ? ", grows" : "");
      const facts = [["reach", `${words} ${ability.unit}`], ["state", state], ["family", line.family]];
      return { name: line.name, x: cell.state, y: size, err: 0, ...lookOf(line.family), hollow: cell.grows, facts };
    }),
    levels: [{ name: "trained", y: ability.trained, colour: 6, dash: "4 3" }],
  }));
  return (chosen = ability) => {
    ability = chosen;
    const first = data.overview.lines.find((line) => chosen.id in line.cells);
    const groups = Object.keys(first.cells[chosen.id].reach);
    group = groups[0];
    const controls = part.querySelector(".controls");
    controls.replaceChildren();
    if (groups.length > 1) {
      choice(controls, "group", "group", groups.map((one) => [one, one]), group, (one) => {
        group = one;
        redraw();
      });
    }
    const families = [...new Set(shown().map((line) => line.family))].sort();
    const marks = families.map((family) => [svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, marker(lookOf(family), 7, 7, 5)), family]);
    markList(part.querySelector(".reach + .marks"), marks);
    redraw();
  };
}

/** The curves of an architecture by size, a chart for each ability that it has. */
function reachCurves(part) {
  let line = null;
  const redraws = data.overview.abilities.map((ability) => {
    const figure = part.querySelector(`figure[data-ability="${ability.id}"]`);
    const board = data.boards.find((one) => one.id === ability.id);
    const series = () => {
      const cell = line && line.cells[ability.id];
      if (!cell) return [];
      const entry = board.entries.find((one) => one.name === cell.entry);
      return Object.keys(cell.reach).map((name, i) => ({
        name: name || ability.name, colour: i, dash: DASHES[i], width: 2, marker: MARKERS[i],
        lines: entry.curves[name ? `${name.replaceAll("-", "_")}_area` : "area"],
      }));
    };
    const redraw = lineChart(figure.querySelector(".chart"), () => ({
      title: `${ability.name} by ${ability.unit}`,
      x: sizesOf(ability.unit, ability.trained),
      y: { label: "accuracy: 0 chance, 1 the best possible", format: short, holds: [0, 1] },
      series: series(),
    }));
    return () => {
      const found = series();
      figure.hidden = !found.length;
      if (!found.length) return;
      const link = figure.querySelector("a");
      link.textContent = line.cells[ability.id].entry;
      link.href = `#${encodeURIComponent(`${ability.id}--${link.textContent}`)}`;
      markList(figure.querySelector(".marks"), found.length > 1 ? found.map((one) => [sized(swatch(one)), one.name]) : []);
      redraw();
    };
  });
  return (chosen) => {
    line = chosen;
    redraws.forEach((redraw) => redraw());
  };
}

let family = "";
const isShown = (line) => !family || line.family === family;

/** Families filter the table and the picture. An ability shows its picture, and a name the curves of its architecture. */
function overviewPart() {
  const part = document.querySelector(".overview");
  if (!part) return;
  const panel = part.querySelector(".panel");
  const picture = reachPicture(panel);
  const curves = reachCurves(panel);
  const show = (title, line) => {
    panel.querySelector("h3").textContent = title;
    panel.querySelector(".trio").hidden = !line;
    for (const one of panel.querySelectorAll(":scope > .controls, .reach, .reach + .marks")) one.hidden = Boolean(line);
    if (line) curves(line);
  };
  const showAbility = (ability) => {
    show(`Reach against state: ${ability.name}. The state of a hollow mark grows.`);
    picture(ability);
  };
  for (const head of part.querySelectorAll("th[data-ability]")) {
    const ability = data.overview.abilities.find((one) => one.id === head.dataset.ability);
    head.querySelector("button").addEventListener("click", () => {
      showAbility(ability);
      panel.scrollIntoView({ block: "nearest" });
    });
  }
  for (const link of part.querySelectorAll("[data-line]")) {
    const line = data.overview.lines[Number(link.dataset.line)];
    link.addEventListener("click", () => show(`${line.name}: accuracy by size. The sizes of training are shaded.`, line));
  }
  const families = [["", "all families"], ...FAMILIES.map((one) => [one, one])];
  choice(part.querySelector("#families"), "family", "family", families, "", (chosen) => {
    family = chosen;
    for (const row of part.querySelectorAll(".board tbody tr")) row.classList.toggle("out", Boolean(family) && row.dataset.family !== family);
    picture();
  });
  showAbility(data.overview.abilities[0]);
}

/** The button copies the command that stands before it. */
function makeCopiable(button) {
  const command = button.closest("details").querySelector("pre").textContent;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command);
    button.textContent = "copied";
  });
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
document.querySelectorAll("button.copy").forEach(makeCopiable);
overviewPart();
trackChoice();
for (const board of data.boards) {
  const section = document.getElementById(board.id);
  makeFilterable(section);
  scatterCharts(section, board);
  curveCharts(section, board);
}
addEventListener("hashchange", openTarget);
openTarget();

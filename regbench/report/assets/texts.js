"use strict";
// An instance as running text: the higher the NLL of a token, the darker it is. Text is set as text, never as HTML.

const MOST_NATS = 12;

/** Nats as a shade from 0 to 1. Differences below half a nat are not seen. */
function natShade(nats) {
  return Math.min(1, Math.max(0, nats) / MOST_NATS) ** 1.2;
}

/** A token where it stands alone, e.g. in a tooltip: its spaces and line ends are seen. */
function visible(token) {
  return token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣");
}

/** The text of one predictor. colourOf(t) -> a CSS colour, or "" where nothing is scored. */
function shadedText(instance, colourOf) {
  const text = html("div", { class: "tokens", tabindex: 0, role: "group", "aria-label": `${instance.tokens.length} tokens` });
  instance.tokens.forEach((token, t) => {
    if (t === instance.switch) add(text, html("span", { class: "switch" }, `switch: another text begins at token ${t}`));
    const span = html("span", { "data-t": t }, token.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t"));
    const colour = colourOf(t);
    if (colour) span.style.backgroundColor = colour;
    add(text, span);
  });
  return text;
}

/** The mean NLL of the scored tokens before the switch and after it, for a heading. */
function meanNats(instance, nats) {
  const mean = (from, to) => {
    const some = nats.slice(from, to).filter((_, i) => instance.scored[from + i]);
    return some.length ? (some.reduce((a, b) => a + b, 0) / some.length).toFixed(2) : "–";
  };
  if (instance.switch === null) return `NLL (nats): ${mean(0, nats.length)}`;
  return `NLL (nats): ${mean(0, instance.switch)} before the switch, ${mean(instance.switch, nats.length)} after`;
}

/** What is known of one token, for the tooltip. names: of the models, then of the baseline. */
function aboutToken(instance, t, names) {
  const where = instance.switch === null ? "" : t < instance.switch ? " (first text)" : ` (${t - instance.switch} after the switch)`;
  const head = html("div", {}, html("b", {}, visible(instance.tokens[t])), ` token ${t}${where}`);
  if (!instance.scored[t]) return [head, html("div", { class: "soft" }, "not scored")];
  const rows = names.map((name, i) => [name, instance.nats[i][t].toFixed(2), visible(instance.best[i][t])]);
  return [head, tipTable(rows, ["", "NLL (nats)", "most likely"])];
}

/** Calls show(t, x, y) for the token under the pointer, or that the arrow keys reach, and leave() when there is none. */
function exploreTokens(text, show, leave) {
  let t = -1;
  const at = (span, x, y) => {
    t = Number(span.dataset.t);
    show(t, x, y);
  };
  text.addEventListener("pointermove", (event) => {
    const span = event.target.closest("[data-t]");
    if (span) at(span, event.clientX, event.clientY);
    else leave();
  });
  text.addEventListener("pointerleave", leave);
  text.addEventListener("blur", leave);
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = text.querySelectorAll("[data-t]");
    const span = all[Math.max(0, Math.min(all.length - 1, t + step))];
    const box = span.getBoundingClientRect();
    at(span, box.left, box.top);
  });
}

/** The section of the page. texts: what `layout` in instances.py makes, and the names of the models. label: of the metric. */
function runningTexts(texts, label) {
  const names = [...texts.names, ...(texts.baseline === null ? [] : [texts.baseline])];
  const short = [...texts.short, ...(texts.baseline === null ? [] : [texts.baseline])];
  const host = byId("texts");
  let instance = texts.instances[0];
  let shade = "nats";
  const nats = (i) => (t) => (instance.scored[t] ? `rgba(var(--more),${(0.85 * natShade(instance.nats[i][t])).toFixed(3)})` : "");
  const gap = (i) => (t) => {
    if (!instance.scored[t]) return "";
    const more = instance.nats[i][t] - instance.nats[names.length - 1][t];
    return `rgba(var(${more > 0 ? "--more" : "--less"}),${(0.85 * natShade(Math.abs(more))).toFixed(3)})`;
  };
  const draw = () => {
    const blocks = names.map((name, i) => {
      const compared = shade === "difference" && i < texts.names.length;
      const text = shadedText(instance, compared ? gap(i) : nats(i));
      exploreTokens(text, point, leave);
      const title = compared ? `${name} − ${texts.baseline}` : name;
      return html("div", {}, html("h3", {}, title, html("span", { class: "soft" }, ` ${meanNats(instance, instance.nats[i])}`)), text);
    });
    host.replaceChildren(html("div", { class: "texts" }, blocks));
  };
  const mark = (t) => {
    for (const span of host.querySelectorAll(".here")) span.classList.remove("here");
    if (t !== null) for (const span of host.querySelectorAll(`[data-t="${t}"]`)) span.classList.add("here");
  };
  const point = (t, x, y) => {
    mark(t);
    showTip(x, y, ...aboutToken(instance, t, short));
  };
  const leave = () => {
    mark(null);
    hideTip();
  };
  const say = () => {
    const scores = instance.scores.map((s, i) => (texts.names.length > 1 ? `${texts.short[i]}: ${s.toFixed(3)}` : s.toFixed(3))).join(", ");
    byId("about").textContent = `${data.split} instance ${instance.index}, ${instance.why} of ${texts.total} by ${label}: ${scores}. ${instance.tokens.length} tokens.`;
  };
  const controls = byId("text-controls");
  const options = texts.instances.map((one, i) => [String(i), `${one.why} (${one.index})`]);
  choice(controls, "instance", "instance", options, "0", (key) => {
    instance = texts.instances[Number(key)];
    say();
    draw();
  });
  if (texts.baseline !== null) {
    const shades = [["nats", "NLL"], ["difference", `NLL − NLL of ${texts.baseline}`]];
    choice(controls, "shade", "shade", shades, shade, (key) => {
      shade = key;
      draw();
    });
  }
  for (const [id, rgb] of [["scale-nats", "--more"], ["scale-fewer", "--less"]]) byId(id).prepend(natScale(rgb));
  say();
  draw();
}

/** The scale of the shades, as a sample beside its words. */
function natScale(rgb) {
  const cells = [0, 2, 4, 6, 8, 10, 12].map((nats, i) => {
    const fill = `rgba(var(${rgb}),${(0.85 * natShade(nats)).toFixed(3)})`;
    return svg("rect", { x: i * 14, y: 0, width: 14, height: 11, fill, stroke: "var(--rule)", "stroke-width": 0.5 });
  });
  return svg("svg", { viewBox: "-1 -1 100 13", width: 100, height: 13, "aria-hidden": "true" }, cells);
}

// The page: a list of words, an overview, and one view a word. Everything is drawn when asked for.

const data = JSON.parse(document.getElementById("data").textContent);
const SHOWN = 200; // entries of the list that are drawn at a time
const number = new Intl.NumberFormat("en");
const byId = (id) => document.getElementById(id);
const sensesOf = (word) => data.first[word + 1] - data.first[word];
const places = (word) => Array.from({ length: sensesOf(word) }, (_, k) => data.first[word] + k);
const timesOf = (word) => places(word).reduce((sum, at) => sum + data.times[at], 0);
const several = (count, name) => `${number.format(count)} ${name}${count === 1 ? "" : "s"}`;

// ------------------------------------------------------------------ the list of words

const lower = data.words.map((word) => word.toLowerCase());
const orders = {
  senses: (word) => -sensesOf(word),
  count: (word) => -data.count[word],
  times: (word) => -timesOf(word),
  name: (word) => lower[word],
};
const sorted = {};
let hits = [], drawn = 0;

/** Numbers of all words in an order, computed once; of equal ones the more frequent first. */
function ordered(order) {
  if (sorted[order]) return sorted[order];
  const keys = data.words.map((_, word) => orders[order](word));
  const compare = (a, b) => (keys[a] < keys[b] ? -1 : Number(keys[a] > keys[b]));
  const all = data.words.map((_, word) => word);
  return (sorted[order] = all.sort((a, b) => compare(a, b) || data.count[b] - data.count[a]));
}

/** Words with the text in them: the same word first, then those that begin with it. */
function find(text) {
  const wanted = text.trim().toLowerCase(), ranks = [[], [], []];
  for (const word of ordered(byId("order").value)) {
    const at = lower[word].indexOf(wanted);
    if (at >= 0) ranks[!wanted || lower[word] === wanted ? 0 : at === 0 ? 1 : 2].push(word);
  }
  return ranks.flat();
}

function link(word, ...children) {
  return element("a", { href: `#word=${encodeURIComponent(data.words[word])}` }, ...children);
}

function drawMore() {
  const part = hits.slice(drawn, drawn + SHOWN).map((word) => {
    const note = element("span", {}, several(sensesOf(word), "sense"));
    const item = link(word, element("span", {}, data.words[word]), note);
    return element("li", {}, item);
  });
  byId("list").append(...part);
  drawn += part.length;
  markCurrent();
  byId("more").hidden = drawn >= hits.length;
}

function drawList() {
  hits = find(byId("search").value);
  drawn = 0;
  byId("list").replaceChildren();
  byId("hits").textContent = several(hits.length, "word");
  drawMore();
}

// ------------------------------------------------------------------ one word

let current = -1, joined = false;

function senseTable(word) {
  const last = "nearest senses by kernel (logit)";
  const rows = [["", "sense", "usage", data.theta && "θ", data.times && "times", last]];
  for (const [slot, at] of places(word).entries()) {
    const share = data.usage[at] / 10;
    const bar = element("span", { class: "bar", "aria-hidden": true },
      element("i", { style: `width:${share}%` }));
    rows.push([
      [signIcon(slot)], String(data.sense[at]), [bar, `${share.toFixed(1)} %`],
      data.theta?.[at].toFixed(3), data.times && number.format(data.times[at]), nearest(at),
    ]);
  }
  const lines = rows.map((cells, at) => element("tr", {}, ...cells.map((cell) => cell ?? [])
    .filter((_, column) => rows[0][column] !== null)
    .map((cell) => element(at ? "td" : "th", at ? {} : { scope: "col" }, ...[cell].flat()))));
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, lines[0]), element("tbody", {}, ...lines.slice(1))));
}

function nearest(at) {
  const parts = [];
  for (let k = at * data.near.each; k < (at + 1) * data.near.each; k++) {
    const place = data.near.place[k];
    if (place < 0) break;
    const word = data.first.findLastIndex((first) => first <= place);
    const note = ` ${data.sense[place]} (${data.near.score[k].toFixed(2)})`;
    parts.push(parts.length ? ", " : "", link(word, data.words[word]),
      element("span", { class: "small" }, note));
  }
  return parts;
}

/** K(c) of Eq. 9 for vectors of length 1. */
function kernelCurve(theta) {
  const x = Array.from({ length: 81 }, (_, step) => -1 + step / 40);
  const a = -theta / (2 * (Math.exp(-theta) + theta - 1));
  return { x, y: x.map((c) => (Math.abs(theta) < 1e-3 ? c : a * Math.expm1(-theta * c))) };
}

/** Contexts (x, y, sense, …) and sense vectors (x, y, …) of a word, one scale for both axes. */
function plane(dots, marks) {
  const signs = [];
  for (let k = 0; k < dots.length; k += 3) signs.push([...dots.slice(k, k + 3), 0.7]);
  for (let k = 0; k < marks.length; k += 2) signs.push([...marks.slice(k, k + 2), k / 2, 1.2]);
  const ends = [0, 1].map((axis) => Math.max(...signs.map((one) => one[axis])));
  const unit = 1.15 * Math.max(...ends.map((end, axis) => (end || 1) / SIDES[axis]));
  const ranges = ends.map((end, axis) =>
    [-1, 1].map((side) => (end + side * unit * SIDES[axis]) / 2));
  const labels = ["Contexts and senses", "first principal component", "second principal component"];
  const figure = chart(labels, ...ranges, (svg, x, y) => signs.forEach(([h, v, sense, size]) => {
    svg.append(sign(sense, x(h), y(v), size));
    if (size > 1) svg.append(shape("circle", { class: "ring", cx: x(h), cy: y(v), r: 9 }));
  }), false);
  figure.append(element("div", { class: "small" },
    "A sign for each context, by its most probable sense; in a ring: the sense's own vector."));
  return figure;
}

function wordCharts(word) {
  const charts = element("div", { class: "charts" }), points = data.points[word];
  if (points) charts.append(plane(...points));
  if (data.theta && data.kernel === "kerbs") {
    const lines = places(word).map(
      (at) => ({ name: `sense ${data.sense[at]}`, ...kernelCurve(data.theta[at]) }));
    const labels = ["Kernels of its senses", "cosine of h and w", "logit K for |h| = |w| = 1"];
    charts.append(lineChart(labels, lines, true));
  }
  return charts;
}

function contextLine(sentence, position, posterior) {
  const tokens = data.sentences[sentence].split(" ");
  const text = element("span");
  tokens.forEach((token, place) => {
    const glued = joined && token.endsWith("@@");
    const shown = glued ? token.slice(0, -2) : token;
    text.append(place === position ? element("mark", {}, shown) : shown, glued ? "" : " ");
  });
  return element("li", {}, element("span", { class: "p" }, (posterior / 1000).toFixed(2)), text);
}

function contexts(word) {
  const made = element("section", {},
    element("h3", {}, "Contexts, with the posterior of the sense"));
  const box = element("input", { type: "checkbox", id: "joined" });
  box.checked = joined;
  box.addEventListener("change", () => {
    joined = box.checked;
    drawWord(word);
    byId("joined").focus();
  });
  made.append(element("label", { class: "small" }, box, " join BPE pieces"));
  for (const [slot, at] of places(word).entries()) {
    const flat = data.examples[at] || [];
    made.append(element("h3", {}, signIcon(slot), ` Sense ${data.sense[at]}`));
    if (!flat.length) made.append(element("p", { class: "small" }, "Not used in these texts."));
    const list = made.appendChild(element("ul", { class: "contexts" }));
    for (let k = 0; k < flat.length; k += 3) list.append(contextLine(...flat.slice(k, k + 3)));
  }
  return made;
}

function drawWord(word) {
  const name = data.words[word];
  const facts = [
    several(sensesOf(word), "sense"),
    `${number.format(data.count[word])} times in the training data`,
    `log P ${short(data.logp[word])}`,
  ];
  if (data.times) facts.push(`${number.format(timesOf(word))} times in these texts`);
  if (name.endsWith("@@")) facts.push("a BPE piece, the beginning of a word");
  byId("main").replaceChildren(
    element("h2", {}, name), element("p", {}, facts.join(" · ")),
    senseTable(word), wordCharts(word),
    ...(data.times ? [contexts(word)] : []),
  );
}

// ------------------------------------------------------------------ overview

/** Mean number of senses in tenths of the words. */
function deciles() {
  const words = ordered("count").filter((word) => data.count[word] > 0);
  return Array.from({ length: 10 }, (_, k) => {
    const end = (part) => Math.floor((part * words.length) / 10);
    const part = words.slice(end(k), end(k + 1));
    return part.reduce((sum, word) => sum + sensesOf(word), 0) / (part.length || 1);
  });
}

function overviewCharts() {
  const numbers = [0, 0, 0, 0];
  data.words.forEach((_, word) => {
    const senses = sensesOf(word);
    while (numbers.length < senses) numbers.push(0);
    numbers[senses - 1]++;
  });
  const charts = [
    bars(["Words by number of senses", "senses", "words"], [0.5, numbers.length + 0.5], numbers),
    bars(["Senses by frequency", "tenth of the words (1: most frequent)", "senses a word"],
      [0.5, 10.5], deciles()),
    histogram(["Usage", "share of its word's usage, %", "senses"], [0, 100],
      data.usage.map((share) => share / 10), 20),
  ];
  const theta = ["Kernel parameter", "θ", "senses"];
  if (data.theta) charts.push(histogram(theta, range(data.theta), data.theta, 24));
  for (const [title, label, start] of [
    ["Words by number of senses, over training", "words", "words_with_"],
    ["Senses moved", "senses since the last record", "senses_moved"],
    ["θ over training", "θ", "theta_q"],
  ]) {
    const lines = Object.entries(data.history ?? {}).filter(([name]) => name.startsWith(start))
      .map(([name, [x, y]]) => ({ name: name.replaceAll("_", " "), x, y }));
    if (lines.length) charts.push(lineChart([title, "updates", label], lines));
  }
  return charts;
}

function drawOverview() {
  const facts = element("dl");
  for (const [name, value] of data.facts) {
    facts.append(element("dt", {}, name), element("dd", {}, value));
  }
  byId("main").replaceChildren(element("h2", {}, "Overview"), facts,
    element("div", { class: "charts" }, ...overviewCharts()));
}

// ------------------------------------------------------------------ getting about

const wordNumber = new Map(data.words.map((word, at) => [word, at]));

function go() {
  let name = null;
  try {
    name = decodeURIComponent(location.hash.match(/^#word=(.*)$/)?.[1] ?? "");
  } catch { /* a hash that is no text names no word */ }
  current = wordNumber.get(name) ?? -1;
  if (current >= 0) drawWord(current); else drawOverview();
  markCurrent();
}

function markCurrent() {
  for (const item of byId("list").querySelectorAll("a")) {
    item.setAttribute("aria-current", item.firstChild.textContent === data.words[current]);
  }
}

function walk(event) {
  const items = [...byId("list").querySelectorAll("a")];
  const at = items.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") {
    byId("search").focus();
    byId("search").select();
  } else if (step && at + step >= 0 && at + step < items.length) {
    items[at + step].focus();
  } else if (step === -1) {
    byId("search").focus();
  } else {
    return;
  }
  event.preventDefault();
}

byId("search").addEventListener("input", drawList);
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") walk(event);
  if (event.key === "Enter" && hits.length) {
    location.hash = `word=${encodeURIComponent(data.words[hits[0]])}`;
  }
});
byId("list").addEventListener("keydown", walk);
byId("order").addEventListener("change", drawList);
byId("more").addEventListener("click", drawMore);
byId("home").addEventListener("click", () => byId("main").focus());
byId("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const dark = (document.documentElement.dataset.theme ?? system) === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("search").focus();
});
document.addEventListener("keydown", (event) => {
  const writing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key !== "/" || writing || event.ctrlKey || event.metaKey || event.altKey) return;
  byId("search").focus();
  event.preventDefault();
});
window.addEventListener("hashchange", () => {
  go();
  byId("main").focus({ preventScroll: true });
  if (matchMedia("(max-width: 46rem)").matches) byId("main").scrollIntoView();
  else window.scrollTo(0, 0);
});
byId("order").querySelector("[value=times]").hidden = !data.times;
go();
drawList();
document.documentElement.dataset.ready = Math.round(performance.now());

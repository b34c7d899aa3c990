// The page: a list of words, an overview, and one view a word. Everything is drawn when asked for.

const data = JSON.parse(document.getElementById("data").textContent);
const SHOWN = 200; // entries of the list that are drawn at a time
const number = new Intl.NumberFormat("en");
const byId = (id) => document.getElementById(id);
const sensesOf = (word) => data.first[word + 1] - data.first[word];
const places = (word) => Array.from({ length: sensesOf(word) }, (_, k) => data.first[word] + k);
const timesOf = (word) => places(word).reduce((sum, at) => sum + data.times[at], 0);
const several = (count, name) => `${number.format(count)} ${name}${count === 1 ? "" : "s"}`;

/** An element with attributes and children; text is set, never parsed. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// ------------------------------------------------------------------ the list of words

const lower = data.words.map((word) => word.toLowerCase());
const orders = {};
let hits = [], drawn = 0;

/** Numbers of all words in an order, computed once. */
function ordered(order) {
  if (orders[order]) return orders[order];
  const all = data.words.map((_, word) => word);
  const times = order === "times" ? all.map(timesOf) : [];
  const compare = {
    senses: (a, b) => sensesOf(b) - sensesOf(a) || data.count[b] - data.count[a],
    count: (a, b) => data.count[b] - data.count[a],
    times: (a, b) => times[b] - times[a] || data.count[b] - data.count[a],
    name: (a, b) => (lower[a] < lower[b] ? -1 : Number(lower[a] > lower[b])),
  }[order];
  return (orders[order] = all.sort((a, b) => compare(a, b) || a - b));
}

/** Words with the text in them: the same word first, then those that begin with it. */
function find(text) {
  const wanted = text.trim().toLowerCase();
  const all = ordered(byId("order").value);
  if (!wanted) return all;
  const ranks = [[], [], []];
  for (const word of all) {
    const at = lower[word].indexOf(wanted);
    if (at >= 0) ranks[lower[word] === wanted ? 0 : at === 0 ? 1 : 2].push(word);
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
    if (word === current) item.setAttribute("aria-current", "true");
    return element("li", {}, item);
  });
  byId("list").append(...part);
  drawn += part.length;
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
  const head = ["", "sense", "usage", "θ", "times", "nearest senses by kernel (logit)"];
  const lacking = { θ: !data.theta, times: !data.times };
  const kept = head.filter((name) => !lacking[name]);
  const row = element("tr", {}, ...kept.map((name) => element(
    "th", name.startsWith("nearest") ? { class: "left", scope: "col" } : { scope: "col" }, name)));
  const body = element("tbody");
  for (const [slot, at] of places(word).entries()) {
    const share = data.usage[at] / 10;
    const bar = element("span", { class: "bar", "aria-hidden": true },
      element("i", { style: `width:${share}%` }));
    const cells = [
      element("td", {}, signIcon(slot)), element("td", {}, String(data.sense[at])),
      element("td", {}, bar, `${share.toFixed(1)} %`),
    ];
    if (data.theta) cells.push(element("td", {}, data.theta[at].toFixed(3)));
    if (data.times) cells.push(element("td", {}, number.format(data.times[at])));
    body.append(element("tr", {}, ...cells, element("td", { class: "left" }, ...nearest(at))));
  }
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, row), body));
}

/** The word that has a sense, by bisection. */
function wordOf(place) {
  let low = 0, high = data.words.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (data.first[middle] <= place) low = middle; else high = middle;
  }
  return low;
}

function nearest(at) {
  const parts = [];
  for (let k = at * data.near.each; k < (at + 1) * data.near.each; k++) {
    const place = data.near.place[k];
    if (place < 0) break;
    const word = wordOf(place);
    const label = element("span", { class: "small" },
      ` ${data.sense[place]} (${data.near.score[k].toFixed(2)})`);
    parts.push(parts.length ? ", " : "", link(word, data.words[word]), label);
  }
  return parts;
}

/** K(c) of Eq. 9 for vectors of length 1. */
function kernelCurve(theta) {
  const x = [], y = [];
  for (let step = 0; step <= 80; step++) {
    const c = -1 + step / 40;
    const small = Math.abs(theta) < 1e-3;
    x.push(c);
    y.push(small ? c : (-theta / (2 * (Math.exp(-theta) + theta - 1))) * Math.expm1(-theta * c));
  }
  return { x, y };
}

/** Contexts (x, y, sense, …) and sense vectors (x, y, …) of a word, one scale for both axes. */
function plane(dots, marks) {
  const along = (axis) => [
    ...dots.filter((_, k) => k % 3 === axis), ...marks.filter((_, k) => k % 2 === axis),
  ];
  const ends = [0, 1].map((axis) => [Math.min(...along(axis)), Math.max(...along(axis))]);
  const sides = [WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP];
  const unit = 1.15 * Math.max(...ends.map(([low, high], axis) => (high - low || 1) / sides[axis]));
  const [xRange, yRange] = ends.map(([low, high], axis) => {
    const middle = (low + high) / 2, half = (unit * sides[axis]) / 2;
    return [middle - half, middle + half];
  });
  const figure = chart({
    title: "Contexts and senses", xLabel: "first principal component",
    yLabel: "second principal component", xRange, yRange, xNumbers: false, yNumbers: false,
  }, (svg, x, y) => {
    for (let k = 0; k < dots.length; k += 3) {
      svg.append(sign(dots[k + 2], x(dots[k]), y(dots[k + 1]), 3));
    }
    for (let k = 0; k < marks.length; k += 2) {
      const ring = { cx: x(marks[k]), cy: y(marks[k + 1]), r: 9, fill: "none" };
      svg.append(sign(k / 2, ring.cx, ring.cy, 5));
      svg.append(shape("circle", { ...ring, stroke: "var(--ink)", "stroke-width": 1.5 }));
    }
  });
  figure.append(element("div", { class: "small" },
    "A sign for each context, by its most probable sense; in a ring: the sense's own vector."));
  return figure;
}

function wordCharts(word) {
  const charts = element("div", { class: "charts" });
  const points = data.points[word];
  if (points) charts.append(plane(...points));
  if (data.theta && data.kernel === "kerbs") {
    const lines = places(word).map(
      (at) => ({ name: `sense ${data.sense[at]}`, ...kernelCurve(data.theta[at]) }));
    const labels = ["Kernels of its senses", "cosine of h and w", "logit K for |h| = |w| = 1"];
    charts.append(lineChart(...labels, lines, true));
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
    const list = element("ul", { class: "contexts" });
    for (let k = 0; k < flat.length; k += 3) list.append(contextLine(...flat.slice(k, k + 3)));
    made.append(list);
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

function deciles() {
  const words = ordered("count").filter((word) => data.count[word] > 0);
  return Array.from({ length: 10 }, (_, k) => {
    const end = (part) => Math.floor((part * words.length) / 10);
    const part = words.slice(end(k), end(k + 1));
    const mean = part.reduce((sum, word) => sum + sensesOf(word), 0) / (part.length || 1);
    return [String(k + 1), mean];
  });
}

function drawOverview() {
  const numbers = [];
  data.words.forEach((_, word) => {
    const senses = sensesOf(word);
    numbers[senses] = (numbers[senses] || 0) + 1;
  });
  const bars = Array.from(numbers, (count, senses) => [String(senses), count || 0]).slice(1);
  const charts = element("div", { class: "charts" },
    barChart("Words by number of senses", "senses", "words", bars),
    barChart("Senses by frequency", "tenth of the words (1: most frequent)", "senses a word",
      deciles()),
    histogram("Usage", "share of its word's usage, %", "senses", data.usage.map((u) => u / 10),
      0, 100));
  if (data.theta) {
    const low = data.theta.reduce((a, b) => Math.min(a, b));
    const high = data.theta.reduce((a, b) => Math.max(a, b));
    const ends = low === high ? [low - 1, high + 1] : [low, high];
    charts.append(histogram("Kernel parameter", "θ", "senses", data.theta, ...ends, 24));
  }
  const past = data.history;
  if (past) {
    const lines = (match) => Object.keys(past).filter((name) => match.test(name)).map(
      (name) => ({ name: name.replaceAll("_", " "), x: past[name][0], y: past[name][1] }));
    for (const [title, yLabel, match] of [
      ["Words by number of senses, over training", "words", /^words_with_/],
      ["Senses moved", "senses since the last record", /^senses_moved$/],
      ["θ over training", "θ", /^theta_q/],
    ]) {
      const found = lines(match);
      if (found.length) charts.append(lineChart(title, "updates", yLabel, found));
    }
  }
  const facts = element("dl");
  for (const [name, value] of data.facts) {
    facts.append(element("dt", {}, name), element("dd", {}, value));
  }
  byId("main").replaceChildren(element("h2", {}, "Overview"), facts, charts);
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
  for (const item of byId("list").querySelectorAll("a")) {
    const same = current >= 0 && item.firstChild.textContent === data.words[current];
    if (same) item.setAttribute("aria-current", "true"); else item.removeAttribute("aria-current");
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
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
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

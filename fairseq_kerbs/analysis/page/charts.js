// Charts as SVG. Series and senses differ in dashes and shapes, not only in colour.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 2", "12 4"];
// signs of a word's senses: filled circle, empty square, filled triangle, empty diamond
const SIGNS = [
  "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0-4 0Z", "M-4-4H4V4H-4Z", "M0-5L4.5 3.6H-4.5Z",
  "M0-5.6L5.6 0L0 5.6L-5.6 0Z",
];
const WIDTH = 400, HEIGHT = 250, LEFT = 62, BOTTOM = 42, TOP = 10, RIGHT = 12;
const SIDES = [WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP];

/** Attributes and children of a new element are set; text is never parsed. */
function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const element = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);
const shape = (name, attributes, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

const colour = (index) => `var(--s${index % 4})`;

/** The sign of a word's sense. */
function sign(index, x, y, size = 1) {
  return shape("path", {
    d: SIGNS[index % 4], transform: `translate(${x} ${y}) scale(${size})`,
    fill: index % 2 ? "none" : colour(index), stroke: colour(index), "stroke-width": 1.5,
  });
}

/** The sign alone, to stand in text. */
const signIcon = (index) => shape("svg", {
  width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": true,
}, sign(index, 0, 0));

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

/** Round numbers within a range, about five of them. */
function roundNumbers([low, high]) {
  const rough = (high - low || 1) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) =>
    Number(((first + k) * step).toPrecision(12)));
}

/** Least and greatest of some numbers; of equal ones a range around them. */
function range(values) {
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** A figure; `draw(svg, x, y)` fills it, x and y take data to coordinates. */
function chart([title, xLabel, yLabel], [x0, x1], [y0, y1], draw, numbered = true) {
  const svg = shape("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, role: "img",
    "aria-label": `${title}: ${yLabel} over ${xLabel}`,
  });
  const x = (value) => LEFT + ((value - x0) / (x1 - x0)) * SIDES[0];
  const y = (value) => TOP + SIDES[1] - ((value - y0) / (y1 - y0)) * SIDES[1];
  const floor = TOP + SIDES[1], middle = TOP + SIDES[1] / 2;
  const axis = (d) => svg.append(shape("path", { class: "axis", d }));
  const text = (at, words) => svg.append(shape("text", { "text-anchor": "middle", ...at }, words));
  axis(`M${LEFT} ${TOP}V${floor}H${WIDTH - RIGHT}`);
  for (const value of numbered ? roundNumbers([y0, y1]) : []) {
    axis(`M${LEFT - 4} ${y(value)}H${LEFT}`);
    text({ x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, short(value));
  }
  for (const value of numbered ? roundNumbers([x0, x1]) : []) {
    axis(`M${x(value)} ${floor}v4`);
    text({ x: x(value), y: floor + 16 }, short(value));
  }
  text({ x: LEFT + SIDES[0] / 2, y: HEIGHT - 6 }, xLabel);
  text({ x: 12, y: middle, transform: `rotate(-90 12 ${middle})` }, yLabel);
  draw(svg, x, y);
  return element("figure", {}, element("figcaption", {}, title), svg);
}

/** Bars of heights side by side over a range, each with a note to point at. */
function bars(labels, [low, high], heights) {
  const wide = (high - low) / heights.length;
  const top = heights.reduce((a, b) => Math.max(a, b), 1e-9) * 1.08;
  return chart(labels, [low, high], [0, top], (svg, x, y) => heights.forEach((height, k) => {
    const ends = [low + k * wide, low + (k + 1) * wide];
    const whole = wide === 1 && !Number.isInteger(low); // around the number in the middle
    const name = whole ? short(ends[0] + 0.5) : ends.map(short).join(" to ");
    const [left, right] = ends.map(x), gap = 0.05 * (right - left);
    svg.append(shape("rect", {
      class: "fill", x: left + gap, width: right - left - 2 * gap, y: y(height),
      height: Math.max(0, y(0) - y(height)),
    }, shape("title", {}, `${name}: ${short(height)}`)));
  }));
}

/** A histogram of numbers in equal bins. */
function histogram(labels, [low, high], values, bins) {
  const heights = new Array(bins).fill(0);
  for (const value of values) {
    heights[Math.max(0, Math.min(bins - 1, Math.floor((bins * (value - low)) / (high - low))))]++;
  }
  return bars(labels, [low, high], heights);
}

/** Lines of {name, x, y}, each with its name in a legend below, with the signs of senses or not. */
function lineChart(labels, lines, signs = false) {
  const [low, high] = range(lines.flatMap((line) => line.y));
  const heights = [low > 0 && low < high / 2 ? 0 : low, high];
  const stroke = (index) => ({
    stroke: colour(index), "stroke-width": 1.6, "stroke-dasharray": DASHES[index % DASHES.length],
  });
  const draw = (svg, x, y) => lines.forEach((line, index) => {
    const points = line.x.map((value, place) => `${x(value)},${y(line.y[place])}`).join(" ");
    svg.append(shape("polyline", { points, fill: "none", ...stroke(index) }));
    if (signs) svg.append(sign(index, x(line.x.at(-1)), y(line.y.at(-1))));
  });
  const figure = chart(labels, range(lines.flatMap((line) => line.x)), heights, draw);
  const entries = lines.map((line, index) => element("span", { class: "entry" },
    shape("svg", { width: 34, height: 10, "aria-hidden": true },
      shape("path", { d: "M0 5H34", ...stroke(index) })), ` ${line.name}`));
  figure.append(element("div", { class: "small" }, ...entries));
  return figure;
}

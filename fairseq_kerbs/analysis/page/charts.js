// Charts as SVG. Series and senses differ in dashes and shapes, not only in colour.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 2", "12 4"];
const WIDTH = 400, HEIGHT = 250, LEFT = 62, BOTTOM = 42, TOP = 10, RIGHT = 12;

/** An SVG element; attributes and text are set, never parsed. */
function shape(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const colour = (index) => `var(--s${index % 4})`;

/** The sign of a word's sense: filled circle, empty square, filled triangle, empty diamond. */
function sign(index, x, y, size) {
  const look = index % 2
    ? { fill: "none", stroke: colour(index), "stroke-width": 1.5 }
    : { fill: colour(index), stroke: colour(index) };
  if (index % 4 === 0) return shape("circle", { cx: x, cy: y, r: size, ...look });
  const points = {
    1: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
    2: [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
    3: [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]],
  }[index % 4];
  const path = points.map(([dx, dy]) => `${x + size * dx},${y + size * dy}`).join(" ");
  return shape("polygon", { points: path, ...look });
}

/** The sign alone, to stand in text. */
function signIcon(index) {
  const icon = shape("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": true });
  icon.append(sign(index, 0, 0, 4.5));
  return icon;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

/** Round numbers within a range, about `parts` of them. */
function roundNumbers([low, high], parts) {
  const rough = (high - low || 1) / parts, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const numbers = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
    numbers.push(Number((k * step).toPrecision(12)));
  }
  return numbers;
}

/** A figure with axes; `draw(svg, x, y)` fills it, x and y take data to coordinates. */
function chart({ title, xLabel, yLabel, xRange, yRange, xNumbers = true, yNumbers = true }, draw) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = title;
  const svg = shape("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, role: "img",
    "aria-label": `${title}: ${yLabel} over ${xLabel}`,
  });
  const [x0, x1] = xRange, [y0, y1] = yRange;
  const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - y0) / (y1 - y0 || 1)) * (HEIGHT - BOTTOM - TOP);
  svg.append(shape("path", {
    class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`,
  }));
  for (const value of yNumbers ? roundNumbers(yRange, 5) : []) {
    svg.append(shape("path", { class: "axis", d: `M${LEFT - 4} ${y(value)}H${LEFT}` }));
    svg.append(shape("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of xNumbers ? roundNumbers(xRange, 5) : []) {
    const at = { x: x(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" };
    svg.append(shape("path", { class: "axis", d: `M${at.x} ${HEIGHT - BOTTOM}v4` }));
    svg.append(shape("text", at, short(value)));
  }
  svg.append(shape("text", {
    x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle",
  }, xLabel));
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  svg.append(shape("text", {
    x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})`,
  }, yLabel));
  draw(svg, x, y);
  figure.append(caption, svg);
  return figure;
}

/** A chart of `values` side by side over xRange; `note(index)` says what a bar is. */
function bars(options, values, gap, note, more = () => {}) {
  const [low, high] = options.xRange, wide = (high - low) / values.length;
  const yRange = [0, Math.max(...values, 1e-9) * 1.08];
  return chart({ ...options, yRange }, (svg, x, y) => values.forEach((value, index) => {
    const left = x(low + (index + gap) * wide), right = x(low + (index + 1 - gap) * wide);
    const bar = shape("rect", {
      class: "fill", x: left, width: right - left, y: y(value), height: Math.max(0, y(0) - y(value)),
    });
    bar.append(shape("title", {}, note(index)));
    svg.append(bar);
    more(svg, (left + right) / 2, y(value), index);
  }));
}

/** Bars of [label, value]. */
function barChart(title, xLabel, yLabel, pairs) {
  const options = { title, xLabel, yLabel, xRange: [0, pairs.length], xNumbers: false };
  const values = pairs.map((pair) => pair[1]), every = Math.ceil(pairs.length / 10);
  const note = (index) => `${pairs[index][0]}: ${short(values[index])}`;
  return bars(options, values, 0.1, note, (svg, x, y, index) => {
    const text = (at, label) =>
      svg.append(shape("text", { x, y: at, "text-anchor": "middle" }, label));
    if (pairs.length <= 8) text(y - 3, short(values[index]));
    if (index % every === 0) text(HEIGHT - BOTTOM + 15, pairs[index][0]);
  });
}

/** A histogram of numbers in equal bins. */
function histogram(title, xLabel, yLabel, values, low, high, bins = 20) {
  const heights = new Array(bins).fill(0), width = (high - low) / bins;
  for (const value of values) {
    heights[Math.max(0, Math.min(bins - 1, Math.floor((value - low) / width)))]++;
  }
  const ends = (bin) => [low + bin * width, low + (bin + 1) * width].map(short).join(" to ");
  const options = { title, xLabel, yLabel, xRange: [low, high] };
  return bars(options, heights, 0.03, (bin) => `${ends(bin)}: ${heights[bin]}`);
}

/** Lines of {name, x, y}, each with its name in a legend below. */
function lineChart(title, xLabel, yLabel, lines, signs = false) {
  const all = lines.flatMap((line) => line.y), across = lines.flatMap((line) => line.x);
  const range = (values) => {
    const least = Math.min(...values), high = Math.max(...values);
    const low = least > 0 && least < high / 2 ? 0 : least;
    return low === high ? [low - 1, high + 1] : [low, high];
  };
  const stroke = (index) => ({
    stroke: colour(index), "stroke-width": 1.6, "stroke-dasharray": DASHES[index % DASHES.length],
  });
  const figure = chart(
    { title, xLabel, yLabel, xRange: range(across), yRange: range(all) },
    (svg, x, y) => lines.forEach((line, index) => {
      const points = line.x.map((value, place) => `${x(value)},${y(line.y[place])}`).join(" ");
      svg.append(shape("polyline", { points, fill: "none", ...stroke(index) }));
      const last = line.x.length - 1;
      if (signs) svg.append(sign(index, x(line.x[last]), y(line.y[last]), 4));
    }),
  );
  const legend = document.createElement("div");
  legend.className = "small";
  lines.forEach((line, index) => {
    const sample = shape("svg", { width: 34, height: 10, "aria-hidden": true });
    sample.append(shape("path", { d: "M0 5H34", ...stroke(index) }));
    const entry = document.createElement("span");
    entry.className = "entry";
    entry.append(sample, ` ${line.name}`);
    legend.append(entry, " ");
  });
  figure.append(legend);
  return figure;
}

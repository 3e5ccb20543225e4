// The two charts: quality against cost, and learning curves.
const MARGIN = { left: 46, right: 14, top: 12, bottom: 42 };

function niceStep(span, ticks) {
  const rough = span / ticks, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

function linearScale(low, high, from, to) {
  const span = high - low || 1;
  const scale = (value) => from + ((value - low) / span) * (to - from);
  const step = niceStep(span, 6);
  scale.ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) scale.ticks.push(Number(tick.toPrecision(12)));
  return scale;
}

function logScale(low, high, from, to) {
  const scale = (value) => from + (Math.log(value / low) / Math.log(high / low)) * (to - from);
  const factors = high / low > 300 ? [1] : high / low > 20 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  scale.ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) scale.ticks.push(tick);
    }
  }
  return scale;
}

// note: cached, since reading it while drawing would lay out the whole page again
let pageWidth = 0;

function frame(holder, height, label) {
  const width = Math.max(280, pageWidth ||= holder.clientWidth);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": label });
  holder.replaceChildren(svg);
  return { svg, width, height };
}

function axes(plot, x, y, xLabel) {
  const bottom = plot.height - MARGIN.bottom, right = plot.width - MARGIN.right;
  let last = -Infinity;
  for (const tick of x.ticks) {
    const at = x(tick);
    plot.svg.append(draw("line", { class: "grid", x1: at, x2: at, y1: MARGIN.top, y2: bottom }));
    if (at - last < 40) continue;
    last = at;
    plot.svg.append(draw("text", { x: at, y: bottom + 16, "text-anchor": "middle" }, number(tick, 3)));
  }
  for (const tick of y.ticks) {
    plot.svg.append(draw("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) }));
    plot.svg.append(draw("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(SIGN * tick, 4)));
  }
  plot.svg.append(draw("text", { x: (MARGIN.left + right) / 2, y: plot.height - 6, "text-anchor": "middle" }, xLabel));
  plot.svg.append(draw("text", { x: 12, y: MARGIN.top + 4, transform: `rotate(-90 12 ${MARGIN.top + 4})`, "text-anchor": "end" }, METRIC + UNIT.replace(" ", ", ")));
}

const MARKERS = {
  circle: "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
  square: "m-4 -4h8v8h-8z",
  triangle: "m0 -5l5 9h-10z",
  diamond: "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
  cross: "m-5 -2h3v-3h4v3h3v4h-3v3h-4v-3h-3z",
};

function marker(shape, x, y) {
  return `M${x.toFixed(1)} ${y.toFixed(1)}${MARKERS[shape]}`;
}

function filled(colour, hollow) {
  return { fill: hollow ? "var(--paper)" : colour, stroke: colour, "stroke-width": 1.5 };
}

function line(points, x, y) {
  return points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
}

// note: Math.min(...values) overflows with a hundred thousand values
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function padded(values, fraction) {
  const [low, high] = extent(values), pad = (high - low || Math.abs(high) || 1) * fraction;
  return [low - pad, high + pad];
}

function drawTradeoff() {
  const plot = frame(find("tradeoff"), 420, "quality against " + AXES[state.axis]);
  const points = shown.points;
  if (!points.length) {
    plot.svg.append(draw("text", { x: plot.width / 2, y: 200, "text-anchor": "middle" }, "no data: no finished run matches the filters, or its cost is unknown"));
    return;
  }
  const [low, high] = extent(points.flatMap((point) => costEnds(point)));
  const x = logScale(low / 1.1, high * 1.1, MARGIN.left, plot.width - MARGIN.right);
  const ends = points.flatMap(({ top1: [mean, spread] }) => [mean - (spread || 0), mean + (spread || 0)]);
  const y = linearScale(...padded(ends, 0.06), plot.height - MARGIN.bottom, MARGIN.top);
  axes(plot, x, y, AXES[state.axis]);
  const ordered = [...points].sort((a, b) => a.cost[state.axis][0] - b.cost[state.axis][0]);
  drawCurves(plot, ordered, x, y);
  for (const front of paretoFronts(points)) {
    plot.svg.append(draw("path", { d: line(front.map((p) => [p.cost[state.axis][0], p.top1[0]]), x, y), class: "front" }));
  }
  pointing(plot, ordered, ordered.map((point) => [x(point.cost[state.axis][0]), y(point.top1[0])]));
}

// Draw all curves of one look as three paths, so that thousands of points make few nodes.
function drawCurves(plot, ordered, x, y) {
  const looks = new Map(), places = new Map();
  for (const point of ordered) {
    if (!places.has(point.curve)) places.set(point.curve, []);
    places.get(point.curve).push(point);
  }
  for (const [curve, points] of places) {
    const key = [curve.colour, curve.dash, curve.shape, curve.published].join();
    if (!looks.has(key)) looks.set(key, { curve, lines: [], bars: [], markers: new Set(), points: 0 });
    const look = looks.get(key);
    look.lines.push(line(points.map((p) => [p.cost[state.axis][0], p.top1[0]]), x, y));
    look.points += points.length;
    for (const point of points) {
      look.bars.push(bars(point, x, y));
      // note: a set, since equal markers cover each other
      look.markers.add(marker(curve.shape, x(point.cost[state.axis][0]), y(point.top1[0])));
    }
  }
  for (const { curve, lines, bars: drawn, markers, points } of looks.values()) {
    plot.svg.append(draw("g", { class: "curve", "data-points": points },
      draw("path", { d: lines.join(""), fill: "none", stroke: curve.colour, "stroke-width": 1.5, "stroke-opacity": 0.8, "stroke-dasharray": curve.dash }),
      draw("path", { class: "bars", d: drawn.join(""), fill: "none", stroke: curve.colour, "stroke-width": 1.5 }),
      draw("path", { d: [...markers].join(""), ...filled(curve.colour, curve.published) })));
  }
}

function bars(point, x, y) {
  const [cost, spread] = point.cost[state.axis], [top1, deviation] = point.top1;
  const [low, high] = costEnds(point);
  const upright = deviation ? `M${x(cost).toFixed(1)} ${y(top1 - deviation).toFixed(1)}V${y(top1 + deviation).toFixed(1)}` : "";
  return upright + (spread ? `M${x(low).toFixed(1)} ${y(top1).toFixed(1)}H${x(high).toFixed(1)}` : "");
}

// Return the ends of a cost's bar; a deviation as large as the mean has no lower end on a logarithmic axis.
function costEnds(point) {
  const [mean, spread] = point.cost[state.axis];
  return [spread < mean ? mean - spread : mean, mean + (spread || 0)];
}

// Add one node that the keyboard moves between points, and one that follows the mouse.
function pointing(plot, ordered, places) {
  const ring = (attributes) => draw("g", attributes, draw("circle", { class: "halo", r: 11 }), draw("title"));
  const cursor = ring({ class: "point", role: "button", tabindex: 0 }), hover = ring({ class: "hover", "aria-hidden": "true" });
  const put = (node, index) => {
    const text = pointText(ordered[index]);
    node.setAttribute("transform", `translate(${places[index].join()})`);
    node.lastChild.textContent = text;
    return text;
  };
  let at = 0;
  const move = (index) => {
    at = index;
    cursor.setAttribute("aria-label", put(cursor, at));
  };
  move(0);
  cursor.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) {
      move((at + step + ordered.length) % ordered.length);
      find("status").textContent = pointText(ordered[at]);
    } else if (event.key === "Enter" || event.key === " ") openPoint(ordered[at]);
    else return;
    event.preventDefault();
  });
  let near = -1;
  plot.svg.addEventListener("pointermove", (event) => {
    near = nearest(places, plot, event);
    hover.toggleAttribute("hidden", near < 0);
    if (near >= 0) put(hover, near);
  });
  plot.svg.addEventListener("click", (event) => {
    near = nearest(places, plot, event);
    if (near < 0) return;
    move(near);
    cursor.focus();
    openPoint(ordered[near]);
  });
  hover.toggleAttribute("hidden", true);
  plot.svg.append(cursor, hover);
}

// Return the index of the nearest point within reach of the pointer, or -1.
function nearest(places, plot, event) {
  const box = plot.svg.getBoundingClientRect(), scale = plot.width / box.width;
  const [px, py] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  let best = -1, reach = 24;
  places.forEach(([x, y], index) => {
    const distance = Math.hypot(x - px, y - py);
    if (distance < reach) [best, reach] = [index, distance];
  });
  return best;
}

function pointText(point) {
  return `${shown.named.get(point.curve)}: ${qualities(point.top1)} ${METRIC}, ` +
    `${plusMinus(point.cost[state.axis])} ${AXES[state.axis]}${point.epochs ? `, ${point.epochs} epochs` : ""}`;
}

const MOST_LINES = 200, MOST_NAMED = 40;

function drawLearning() {
  const chosen = state.selected ? state.selected.runs.map((index) => data.runs[index]) : shown.runs;
  const runs = chosen.filter((run) => run.learning[0].length).slice(0, MOST_LINES);
  const hidden = chosen.length > MOST_LINES ? ` The first ${MOST_LINES} of ${chosen.length} runs; filter, or select a point, to see others.` : "";
  find("learning-hint").textContent = METRIC + " at each evaluation; dotted lines are runs that did not finish." + hidden;
  const plot = frame(find("learning"), 320, "learning curves");
  if (!runs.length) {
    plot.svg.append(draw("text", { x: plot.width / 2, y: 150, "text-anchor": "middle" }, "no evaluation to show"));
    return;
  }
  const [, longest] = extent(runs.map((run) => run.learning[0].at(-1)));
  const x = linearScale(0, longest, MARGIN.left, plot.width - MARGIN.right);
  const y = linearScale(...padded(runs.flatMap((run) => run.learning[1]), 0.05), plot.height - MARGIN.bottom, MARGIN.top);
  axes(plot, x, y, "epochs");
  for (const run of runs) {
    const curve = data.curves[run.curveIndex], finished = run.state === "finished";
    const points = run.learning[0].map((epoch, index) => [epoch, run.learning[1][index]]);
    const colour = curve ? curve.colour : GREY, dash = finished ? (curve ? curve.dash : "none") : "2 3";
    // note: a line of one point would be invisible
    const style = points.length > 1
      ? { d: line(points, x, y), fill: "none", stroke: colour, "stroke-width": 1.3, "stroke-dasharray": dash }
      : { d: marker("circle", x(points[0][0]), y(points[0][1])), ...filled(colour, !finished) };
    plot.svg.append(draw("path", style, draw("title", {}, `${run.name} (${run.state})`)));
  }
}

function drawLegend() {
  const entries = shown.curves.slice(0, MOST_NAMED).map((curve) => {
    const key = draw("svg", { viewBox: "0 0 38 14", "aria-hidden": "true" });
    key.append(draw("path", { d: "M0 7H38", stroke: curve.colour, "stroke-width": 1.5, "stroke-dasharray": curve.dash }),
      draw("path", { d: marker(curve.shape, 19, 7), ...filled(curve.colour, curve.published) }));
    return make("li", {}, key, shown.named.get(curve));
  });
  const more = shown.curves.length - Math.min(shown.curves.length, MOST_NAMED);
  if (shown.curves.length) {
    const key = draw("svg", { viewBox: "0 0 38 14", "aria-hidden": "true" });
    key.append(draw("path", { d: "M0 7H38", class: "front" }));
    entries.push(make("li", { class: "of-front" }, key, "Pareto front"));
  }
  if (more) entries.push(make("li", {}, `and ${more} more; filter, or point at a marker, to see its name`));
  find("legend").replaceChildren(...entries);
}

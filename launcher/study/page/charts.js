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

function frame(holder, height, label) {
  const width = Math.max(280, holder.clientWidth);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": label });
  holder.replaceChildren(svg);
  return { svg, width, height };
}

function axes(plot, x, y, xLabel, yLabel) {
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
    plot.svg.append(draw("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick, 4)));
  }
  plot.svg.append(draw("text", { x: (MARGIN.left + right) / 2, y: plot.height - 6, "text-anchor": "middle" }, xLabel));
  plot.svg.append(draw("text", { x: 12, y: MARGIN.top + 4, transform: `rotate(-90 12 ${MARGIN.top + 4})`, "text-anchor": "end" }, yLabel));
}

function marker(shape, x, y, colour, hollow) {
  const style = { fill: hollow ? "var(--paper)" : colour, stroke: colour, "stroke-width": 1.5 };
  const path = {
    square: `M${x - 4} ${y - 4}h8v8h-8z`,
    triangle: `M${x} ${y - 5}l5 9h-10z`,
    diamond: `M${x} ${y - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z`,
    cross: `M${x - 5} ${y - 2}h3v-3h4v3h3v4h-3v3h-4v-3h-3z`,
  }[shape];
  return path ? draw("path", { d: path, ...style }) : draw("circle", { cx: x, cy: y, r: 4.5, ...style });
}

function line(points, x, y, style) {
  const path = points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
  return draw("path", { d: path, fill: "none", ...style });
}

function padded(values, share) {
  const low = Math.min(...values), high = Math.max(...values), pad = (high - low || Math.abs(high) || 1) * share;
  return [low - pad, high + pad];
}

function drawTradeoff() {
  const plot = frame(find("tradeoff"), 420, "quality against " + AXES[state.axis]);
  const points = shownPoints();
  if (!points.length) {
    plot.svg.append(draw("text", { x: plot.width / 2, y: 200, "text-anchor": "middle" }, "nothing to show: no finished run passes the filters, or its cost is not known"));
    return;
  }
  const costs = points.flatMap((point) => costEnds(point));
  const low = Math.min(...costs) / 1.1, high = Math.max(...costs) * 1.1;
  const x = logScale(low, high, MARGIN.left, plot.width - MARGIN.right);
  const ends = points.flatMap(({ top1: [mean, spread] }) => [mean - (spread || 0), mean + (spread || 0)]);
  const y = linearScale(...padded(ends, 0.06), plot.height - MARGIN.bottom, MARGIN.top);
  axes(plot, x, y, AXES[state.axis], "top-1, %");
  for (const curve of new Set(points.map((point) => point.curve))) {
    const own = points.filter((point) => point.curve === curve).map((p) => [p.cost[state.axis][0], p.top1[0]]);
    own.sort((a, b) => a[0] - b[0]);
    plot.svg.append(line(own, x, y, { stroke: curve.colour, "stroke-width": 1.5, "stroke-opacity": 0.8 }));
  }
  for (const front of paretoFronts(points)) {
    plot.svg.append(line(front.map((p) => [p.cost[state.axis][0], p.top1[0]]), x, y, { class: "front" }));
  }
  const ordered = [...points].sort((a, b) => a.cost[state.axis][0] - b.cost[state.axis][0]);
  const named = labels([...new Set(points.map((point) => point.curve))]);
  const nodes = ordered.map((point) => drawPoint(point, x, y, named.get(point.curve)));
  nodes.forEach((node, index) => {
    node.setAttribute("tabindex", index ? -1 : 0);
    node.addEventListener("keydown", (event) => pointKey(event, ordered[index], nodes, index));
    node.addEventListener("click", () => openPoint(ordered[index]));
    plot.svg.append(node);
  });
}

// A cost's bar; a deviation as large as its mean has no lower end on a logarithmic axis.
function costEnds(point) {
  const [mean, spread] = point.cost[state.axis];
  return [spread < mean ? mean - spread : mean, mean + (spread || 0)];
}

function drawPoint(point, x, y, label) {
  const [cost, spread] = point.cost[state.axis], [top1, deviation] = point.top1, curve = point.curve;
  const at = [x(cost), y(top1)], node = draw("g", { class: "point", role: "button" });
  const bar = { stroke: curve.colour, "stroke-width": 1.5 };
  if (deviation) node.append(draw("line", { x1: at[0], x2: at[0], y1: y(top1 - deviation), y2: y(top1 + deviation), ...bar }));
  if (spread) {
    const [low, high] = costEnds(point);
    node.append(draw("line", { x1: x(low), x2: x(high), y1: at[1], y2: at[1], ...bar }));
  }
  node.append(marker(curve.shape, ...at, curve.colour, curve.published), draw("circle", { class: "halo", cx: at[0], cy: at[1], r: 11 }));
  const text = `${label}: ${plusMinus(point.top1)} % top-1, ` +
    `${plusMinus(point.cost[state.axis])} ${AXES[state.axis]}${point.epochs ? `, ${point.epochs} epochs` : ""}`;
  node.setAttribute("aria-label", text);
  node.append(draw("title", {}, text));
  return node;
}

function pointKey(event, point, nodes, index) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step) {
    const next = nodes[(index + step + nodes.length) % nodes.length];
    nodes[index].setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  } else if (event.key === "Enter" || event.key === " ") openPoint(point);
  else return;
  event.preventDefault();
}

const MOST_LINES = 60;

function drawLearning() {
  const chosen = state.selected ? state.selected.runs.map((index) => data.runs[index]) : shownRuns();
  const runs = chosen.filter((run) => run.learning[0].length).slice(0, MOST_LINES);
  const hidden = chosen.length > MOST_LINES ? ` The first ${MOST_LINES} of ${chosen.length} runs; filter, or select a point, to see others.` : "";
  find("learning-hint").textContent = "Top-1 at each evaluation; dotted: no end of the run was recorded." + hidden;
  const plot = frame(find("learning"), 320, "learning curves");
  if (!runs.length) {
    plot.svg.append(draw("text", { x: plot.width / 2, y: 150, "text-anchor": "middle" }, "no evaluation to show"));
    return;
  }
  const longest = Math.max(...runs.map((run) => run.learning[0][run.learning[0].length - 1]));
  const x = linearScale(0, longest, MARGIN.left, plot.width - MARGIN.right);
  const y = linearScale(...padded(runs.flatMap((run) => run.learning[1]), 0.05), plot.height - MARGIN.bottom, MARGIN.top);
  axes(plot, x, y, "epochs", "top-1, %");
  for (const run of runs) {
    const curve = data.curves[run.curveIndex];
    const points = run.learning[0].map((epoch, index) => [epoch, run.learning[1][index]]);
    const style = { stroke: curve ? curve.colour : GREY, "stroke-width": 1.3, "stroke-dasharray": run.state === "finished" ? "none" : "2 3" };
    // note: a line of one point would not be seen
    const path = points.length > 1 ? line(points, x, y, style) : marker("circle", x(points[0][0]), y(points[0][1]), style.stroke, run.state !== "finished");
    path.append(draw("title", {}, `${run.name} (${run.state})`));
    plot.svg.append(path);
  }
}

function drawLegend() {
  const shown = new Set(shownPoints().map((point) => point.curve));
  find("legend").replaceChildren(...[...labels([...shown].sort((a, b) => a.index - b.index))].map(([curve, label]) => {
    const key = draw("svg", { viewBox: "0 0 26 14", "aria-hidden": "true" });
    key.append(draw("line", { x1: 0, x2: 26, y1: 7, y2: 7, stroke: curve.colour, "stroke-width": 1.5 }), marker(curve.shape, 13, 7, curve.colour, curve.published));
    return make("li", {}, key, label);
  }));
}

"use strict";
// The state of the page: the data, the chosen axis and filters, and the values derived from them.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Take the metric of curves and runs; of several metrics it is a quality without a unit.
function useMetric(items) {
  const metrics = new Map(items.map((item) => [String(item.metric), item.metric]));
  if (metrics.size) [METRIC, UNIT, SIGN] = metrics.size === 1 ? [...metrics.values()][0] : ["quality", "", 1];
}

// Colours of page.html, apart for colour-blind readers in light and dark mode; then dashes differ, and markers always.
const COLOURS = ["var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--ink)"];
const DASHES = ["none", "9 3", "12 3 3 3", "5 2"];
const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];
const GREY = "#767676";
// note: qualities have a sign by which higher is better, and are shown without it
let METRIC, UNIT, SIGN;
useMetric([...data.curves, ...data.runs]);
const AXES = { time: "training time, minutes", wall: "wall clock, minutes", money: "money, " + data.currency, epochs: "epochs" };
const SETTING = { dataset: "data set", model: "model", hardware: "machine" };
const FILTERS = { curve: "recipe", epochs: "duration, epochs" };

data.curves.forEach((curve, index) => {
  curve.index = index;
  curve.points.forEach((point) => { point.curve = curve; });
});
const own = data.curves.filter((curve) => !curve.published);
const numbered = (values) => new Map([...new Set(values)].map((value, index) => [value, index]));
const names = numbered(own.map((curve) => curve.name)), settings = numbered(own.map(settingOf));
// note: a recipe has one colour on all data sets, and a different shape on each
own.forEach((curve) => {
  const index = names.get(curve.name), round = Math.floor(index / COLOURS.length);
  curve.colour = COLOURS[index % COLOURS.length];
  curve.dash = DASHES[round % DASHES.length];
  curve.shape = SHAPES[(index + round + settings.get(settingOf(curve))) % SHAPES.length];
});
data.curves.filter((curve) => curve.published).forEach((curve, index) => {
  curve.colour = GREY;
  curve.dash = "none";
  curve.shape = SHAPES[index % SHAPES.length];
});
data.runs.forEach((run, index) => { run.index = index; });

const choices = Object.fromEntries(
  Object.keys(SETTING).map((key) => [key, [...new Set(data.runs.map((run) => run[key]).filter(isKnown))].sort()]));
const inCurves = data.runs.filter((run) => run.curveIndex >= 0);
const state = { axis: data.axis, across: new Set(data.across), chosen: commonest(inCurves.length ? inCurves : data.runs), off: {}, published: false,
  selected: null, pair: [null, null], sort: "name", descending: false };
openAcross();
reset();

// A front across machines needs all of them shown.
function openAcross() {
  for (const key of state.across) state.chosen[key] = null;
}

// Show all points of the chosen data set, model and machine, and published points if they are on the same images.
function reset() {
  for (const name of Object.keys(FILTERS)) state.off[name] = new Set();
  // note: published points are not comparable with runs on other images, except across data sets
  const images = new Set(own.filter(isChosen).map((curve) => curve.dataset));
  state.published = !own.length || state.across.has("dataset") || data.curves.some((curve) => curve.published && images.has(curve.dataset));
}

function settingOf(values) {
  return JSON.stringify(Object.keys(SETTING).map((key) => values[key]));
}

// note: a damaged run has no known data set, a run that never started no known machine; both are always shown
function isKnown(value) {
  return !String(value).startsWith("?");
}

// Return the most common data set, model and machine of the runs; null if there is only one.
function commonest(runs) {
  const chosen = (run) => JSON.stringify(Object.fromEntries(
    Object.keys(SETTING).map((key) => [key, choices[key].length > 1 && isKnown(run[key]) ? run[key] : null])));
  const counts = new Map();
  for (const setting of runs.map(chosen)) counts.set(setting, (counts.get(setting) || 0) + 1);
  return JSON.parse([...counts].sort((a, b) => b[1] - a[1])[0][0]);
}

function choose(key, value) {
  state.chosen[key] = value;
  const matching = data.runs.filter((run) => run[key] === value);
  // note: not every model ran on every data set
  if (matching.length && !matching.some(isChosen)) state.chosen = commonest(matching);
  reset();
}

function isChosen(values) {
  return Object.entries(state.chosen).every(([key, value]) => value === null || values[key] === value || !isKnown(values[key]));
}

function passes(values) {
  return isChosen(values) && Object.keys(FILTERS).every((name) => !state.off[name].has(String(values[name])));
}

function ofPoint(point) {
  const curve = point.curve;
  return { curve: curve.name, model: curve.model, dataset: curve.dataset, hardware: curve.hardware, epochs: point.epochs };
}

// The points, their curves with labels, and the runs that pass the filters; computed once per drawing.
let shown = { points: [], curves: [], named: new Map(), runs: [] };

function findShown() {
  const points = shownPoints(), curves = [...new Set(points.map((point) => point.curve))].sort((a, b) => a.index - b.index);
  shown = { points, curves, named: labels(curves), runs: data.runs.filter(passes) };
  useMetric([...curves, ...shown.runs]);
}

function shownPoints() {
  return data.curves.flatMap((curve) => curve.points).filter((point) => {
    if (!point.cost[state.axis]) return false;
    // note: published points are filtered only by their switch
    return point.curve.published ? state.published : passes(ofPoint(point));
  });
}

// Return the names of curves, with the settings in which they differ.
function labels(curves) {
  const varying = Object.keys(SETTING).filter((key) => new Set(curves.map((curve) => curve[key])).size > 1);
  return new Map(curves.map((curve) => [curve,
    [curve.name, ...varying.map((key) => curve[key])].join(", ") + (curve.published ? " (published)" : "")]));
}

const inEnglish = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });

function number(value, digits) {
  return value === null || value === undefined ? "–" : inEnglish.format(Number(value.toPrecision(digits || 4)));
}

function quality(value) {
  return value === null || value === undefined ? "–" : number(SIGN * value) + UNIT;
}

function qualities([mean, deviation]) {
  return plusMinus([SIGN * mean, deviation]) + UNIT;
}

function plusMinus(pair, digits) {
  return pair ? number(pair[0], digits) + (pair[1] === null ? "" : " ± " + number(pair[1], 2)) : "–";
}

// Return the Pareto front of each data set, model and machine, unless the front is across them.
function paretoFronts(points) {
  const tasks = new Map();
  for (const point of points) {
    const key = JSON.stringify(Object.keys(SETTING).map((part) => state.across.has(part) || point.curve[part]));
    if (!tasks.has(key)) tasks.set(key, []);
    tasks.get(key).push(point);
  }
  return [...tasks.values()].map((group) => {
    const front = [];
    const cost = (point) => point.cost[state.axis][0];
    for (const point of [...group].sort((a, b) => cost(a) - cost(b) || b.top1[0] - a.top1[0])) {
      if (!front.length || point.top1[0] > front[front.length - 1].top1[0]) front.push(point);
    }
    return front;
  });
}

// Write the view into the page's address after `#`, like a form, so that a link shows the same view.
function writeAddress() {
  const words = new URLSearchParams({ axis: state.axis, published: state.published ? "yes" : "no", sort: (state.descending ? "-" : "") + state.sort });
  for (const key of Object.keys(SETTING)) {
    if (choices[key].length > 1) words.append(...(state.chosen[key] === null ? ["all", key] : [key, state.chosen[key]]));
  }
  for (const key of state.across) words.append("across", key);
  for (const name of Object.keys(FILTERS)) {
    const off = [...state.off[name]], on = VALUES[name].filter((value) => !state.off[name].has(value));
    // note: the shorter list, since thousands of recipes may be hidden
    if (off.length > on.length) words.append("only", name);
    if (off.length) for (const value of off.length > on.length ? on : off) words.append(`${off.length > on.length ? "show" : "hide"}-${name}`, value);
  }
  for (const key of state.pair) if (key) words.append("pair", key);
  for (const index of state.selected ? state.selected.runs : []) words.append(state.selected.curve ? "of" : "run", data.runs[index].name);
  try {
    history.replaceState(null, "", `#${words}`);
  } catch {
    // note: browsers refuse if the page has no address, or if it changes too often
  }
}

const VALUES = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, [...new Set(data.runs.map((run) => String(run[name])))]]));

// Read the view from the address, as far as these runs have its values. Return the point or run to open.
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1)), all = (key) => words.getAll(key);
  if (words.get("axis") in AXES) state.axis = words.get("axis");
  for (const key of Object.keys(SETTING)) {
    if (all("all").includes(key)) state.chosen[key] = null;
    if (choices[key].length > 1 && choices[key].includes(words.get(key))) state.chosen[key] = words.get(key);
  }
  if (words.has("axis")) state.across = new Set(all("across").filter((key) => key in SETTING));
  for (const name of Object.keys(FILTERS)) {
    const visible = new Set(all(`show-${name}`)), hidden = new Set(all(`hide-${name}`));
    const off = (value) => (all("only").includes(name) ? !visible.has(value) : hidden.has(value));
    if (words.has("axis")) state.off[name] = new Set(VALUES[name].filter(off));
  }
  if (words.has("published")) state.published = words.get("published") === "yes";
  const sort = (words.get("sort") || "").replace(/^-/, "");
  if (COLUMNS.some(([key]) => key === sort)) [state.sort, state.descending] = [sort, words.get("sort").startsWith("-")];
  all("pair").slice(0, 2).forEach((key, at) => { state.pair[at] = key; });
  const numbers = new Map(data.runs.map((run) => [run.name, run.index])), of = all("of").map((name) => numbers.get(name));
  const point = of.length && data.curves[data.runs[of[0]]?.curveIndex]?.points.find((one) => one.runs.join() === of.join());
  return { point, run: data.runs[numbers.get(words.get("run"))] };
}

// Show the view in the address.
function follow() {
  const { point, run } = readAddress();
  buildControls();
  redraw();
  if (point) openPoint(point);
  else if (run) openRun(run);
  else if (!find("details").hidden) closeDetails();
}

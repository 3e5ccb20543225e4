"use strict";
// What the page shows: the data, the chosen axis and filters, and what follows from them.
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

// Okabe & Ito's colours without yellow, which paper swallows; the marker's shape says the same again.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "var(--ink)"];
const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];
const GREY = "#767676";
const AXES = { time: "training time, minutes", wall: "wall clock, minutes", money: "money, " + data.currency, epochs: "epochs" };
const FILTERS = { curve: "recipe", model: "model", dataset: "data set", hardware: "hardware", epochs: "duration, epochs" };

const varying = ["model", "dataset", "hardware"].filter((key) => new Set(data.curves.map((curve) => curve[key])).size > 1);
data.curves.forEach((curve, index) => {
  curve.index = index;
  curve.label = [curve.name, ...varying.map((key) => curve[key])].join(", ") + (curve.published ? " (published)" : "");
  curve.points.forEach((point) => { point.curve = curve; });
});
data.curves.filter((curve) => !curve.published).forEach((curve, index) => {
  curve.colour = COLOURS[index % COLOURS.length];
  curve.shape = SHAPES[(index + Math.floor(index / COLOURS.length)) % SHAPES.length];
});
data.curves.filter((curve) => curve.published).forEach((curve, index) => {
  curve.colour = GREY;
  curve.shape = SHAPES[index % SHAPES.length];
});
data.runs.forEach((run, index) => { run.index = index; });

// note: beside runs on other pictures the published points say little and leave them little room
const ownPictures = new Set(data.curves.filter((curve) => !curve.published).map((curve) => curve.dataset));
const comparable = !ownPictures.size || data.curves.some((curve) => curve.published && ownPictures.has(curve.dataset));
const state = { axis: "time", off: {}, published: comparable, selected: null, sort: "name", descending: false, all: false };
for (const name of Object.keys(FILTERS)) state.off[name] = new Set();

function passes(values) {
  return Object.keys(FILTERS).every((name) => !state.off[name].has(String(values[name])));
}

function ofPoint(point) {
  const curve = point.curve;
  return { curve: curve.name, model: curve.model, dataset: curve.dataset, hardware: curve.hardware, epochs: point.epochs };
}

function shownPoints() {
  return data.curves.flatMap((curve) => curve.points).filter((point) => {
    if (!point.cost[state.axis]) return false;
    // note: published points have no filter of their own but the switch; a hidden model or data set hides them too
    if (point.curve.published) {
      return state.published && !state.off.model.has(point.curve.model) && !state.off.dataset.has(point.curve.dataset);
    }
    return passes(ofPoint(point));
  });
}

function shownRuns() {
  return data.runs.filter(passes);
}

function number(value, digits) {
  return value === null || value === undefined ? "–" : Number(value.toPrecision(digits || 4)).toLocaleString("en", { maximumFractionDigits: 6 });
}

function plusMinus(pair, digits) {
  return pair ? number(pair[0], digits) + (pair[1] === null ? "" : " ± " + number(pair[1], 2)) : "–";
}

// What no other point of its data set, model and machine beats on cost and quality.
function paretoFronts(points) {
  const tasks = new Map();
  for (const point of points) {
    const key = JSON.stringify([point.curve.dataset, point.curve.model, point.curve.hardware]);
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

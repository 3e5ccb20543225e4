"use strict";
// Draws the lines of /runs.json, and again every two seconds. Names of runs are set as text, never as markup.
const WIDTH = 480, HEIGHT = 240, LEFT = 64, BOTTOM = 28, TOP = 10, COLOURS = 7, EVERY = 2000;
const DASHES = ["", "6 4", "2 3"];

function element(name, attributes = {}, text = "") {
  const svg = ["svg", "line", "text", "polyline"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const colour = (number) => `var(--c${number % COLOURS})`;
const dash = (number) => DASHES[Math.floor(number / COLOURS) % DASHES.length];
const shown = (value) => Number(value.toPrecision(4)).toLocaleString("en");

// Return the rank with the highest last value, of lines of the ranks of one run.
function highest(lines) {
  if (lines.some((line) => line.rank === undefined || line.run !== lines[0].run)) return "";
  const top = lines.reduce((one, other) => (other.points.at(-1)[1] > one.points.at(-1)[1] ? other : one));
  return `; highest: rank ${top.rank} with ${shown(top.points.at(-1)[1])}`;
}

function chart(title, lines) {
  const points = lines.flatMap((line) => line.points);
  const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
  const right = Math.max(...xs) || 1;
  let low = Math.min(...ys), high = Math.max(...ys);
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  const x = (value) => LEFT + (value / right) * (WIDTH - LEFT - 8);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(element("line", { x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }));
    svg.append(element("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, shown(value)));
  }
  svg.append(element("text", { x: LEFT, y: HEIGHT - 8 }, "0"));
  svg.append(element("text", { x: WIDTH - 8, y: HEIGHT - 8, "text-anchor": "end" }, `epoch ${shown(right)}`));
  for (const line of lines) {
    const at = line.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
    if (at.length === 1) at.push(`${x(line.points[0][0]) + 3},${y(line.points[0][1])}`);
    const style = `stroke: ${colour(line.run)}; stroke-dasharray: ${dash(line.run) || "none"}`;
    svg.append(element("polyline", { points: at.join(" "), style }));
  }
  const section = element("section");
  const last = lines.length === 1 ? `: ${shown(lines[0].points.at(-1)[1])}` : highest(lines);
  section.append(element("h2", {}, title + last), svg);
  return section;
}

function draw(runs) {
  const titles = new Map();
  runs.forEach((run, number) => {
    for (const line of run.lines) {
      if (!titles.has(line.title)) titles.set(line.title, []);
      titles.get(line.title).push({ run: number, points: line.points, rank: line.rank });
    }
  });
  document.getElementById("runs").replaceChildren(...runs.map((run, number) => {
    const item = element("li");
    const style = `color: ${colour(number)}; border-top-style: ${dash(number) ? "dashed" : "solid"}`;
    item.append(element("span", { class: "key", style }), element("b", {}, run.name));
    item.append(element("span", { class: "hint" }, ` ${run.state}`));
    for (const warning of run.warnings) item.append(element("div", { class: "warning" }, warning));
    return item;
  }));
  document.getElementById("charts").replaceChildren(...[...titles].map(([title, lines]) => chart(title, lines)));
}

async function update() {
  const note = document.getElementById("note");
  try {
    draw(await (await fetch("runs.json")).json());
    note.textContent = `updated ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    note.textContent = `train watch does not respond: ${error.message}`;
  }
  setTimeout(update, EVERY);
}

update();

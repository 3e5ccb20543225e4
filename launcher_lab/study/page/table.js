// Compare two curves in words: which one reaches a quality at less cost, by how much, and where they cross.
const LESS = { time: ["faster", "min"], wall: ["faster in wall-clock time", "min"], money: ["cheaper", data.currency], epochs: ["shorter", "epochs"] };

const TINY = 1e-12;

// Return a curve's points on the axis, cheapest first.
function measured(curve) {
  const points = curve.points.filter((point) => point.cost[state.axis]);
  return points.map((point) => ({ cost: point.cost[state.axis][0], top1: point.top1[0] })).sort((a, b) => a.cost - b.cost);
}

// Return the lowest cost of a quality; between points quality is linear in the logarithm of the cost, as in `train compare`.
function costAt(points, quality) {
  if (points[0].top1 >= quality) return points[0].cost;
  for (let right = 1; right < points.length; right++) {
    const [low, high] = [points[right - 1], points[right]];
    if (low.top1 < quality && quality <= high.top1) {
      const fraction = (quality - low.top1) / (high.top1 - low.top1);
      return low.cost ** (1 - fraction) * high.cost ** fraction;
    }
  }
  return Infinity;
}

function qualityAt(points, cost) {
  const right = Math.max(1, points.findIndex((point) => point.cost >= cost));
  if (points.length === 1 || points[right].cost === points[right - 1].cost) return points[points.length - 1].top1;
  const [low, high] = [points[right - 1], points[right]];
  return low.top1 + (high.top1 - low.top1) * Math.log(cost / low.cost) / Math.log(high.cost / low.cost);
}

// Return the logarithm of the second cost over the first at the ends of each piece; above 0 the first curve is ahead.
function advantage(first, second) {
  const best = (points) => extent(points.map((point) => point.top1))[1];
  const low = Math.max(first[0].top1, second[0].top1), high = Math.min(best(first), best(second));
  const ahead = (quality) => Math.log(costAt(second, quality) / costAt(first, quality));
  const inside = [...first, ...second].map((point) => point.top1).filter((top1) => low < top1 && top1 < high);
  const levels = [...new Set([low, ...inside, high])].sort((a, b) => a - b), crossings = [];
  const seen = low > high ? [] : [[low, ahead(low)]];
  for (let at = 1; low < high && at < levels.length; at++) {
    const [left, right] = [levels[at - 1], levels[at]], end = ahead(right);
    // note: right of a level a falling curve may be on a later piece, so this end is extrapolated from the middle
    const start = 2 * ahead((left + right) / 2) - end;
    if (seen.at(-1)[1] * start < -TINY) crossings.push(left);
    if (start * end < -TINY) crossings.push(left + (right - left) * start / (start - end));
    seen.push([left, start], [right, end]);
  }
  return { low, high, seen, crossings };
}

function inWords(curve, other) {
  const [first, second] = [measured(curve), measured(other)], [a, b] = [curve, other].map((one) => shown.named.get(one));
  const { low, high, seen, crossings } = advantage(first, second), [less, unit] = LESS[state.axis];
  const cost = (value) => `${number(value, 3)} ${unit}`;
  const times = (ahead) => `${number(Math.exp(Math.abs(ahead)), 3)}x`;
  const both = (top1) => `${a} reaches ${quality(top1)} at ${cost(costAt(first, top1))}, ${b} at ${cost(costAt(second, top1))}`;
  const sentences = differing(curve, other);
  if (!seen.length) {
    const range = (name, points) => `${name} has ${extent(points.map((p) => p.top1)).map(quality).join(" to ")} at ${extent(points.map((p) => p.cost)).map(cost).join(" to ")}`;
    return [...sentences, `They reach no common quality: ${range(a, first)}; ${range(b, second)}.`].join(" ");
  }
  const [, most] = extent(seen.map(([, ahead]) => ahead)), [least] = extent(seen.map(([, ahead]) => ahead));
  const same = Math.max(Math.abs(most), Math.abs(least)) < 1e-6, winner = most > -least ? a : b;
  const where = low === high ? `At ${quality(low)}, the only quality that both reach,` : `Between ${quality(low)} and ${quality(high)}`;
  if (same) sentences.push(`${where} they cost the same: ${both(high)}.`);
  else if (!crossings.length) {
    const [from, to] = [least, most].map(Math.abs).sort((x, y) => x - y).map(times);
    sentences.push(`${where} ${winner} is ${from === to ? to : `${from} to ${to}`} ${less}: ${both(low)}${low === high ? "" : `; ${both(high)}`}.`);
  } else {
    const ends = [[low, seen[0][1]], [high, seen.at(-1)[1]]].map(([top1, ahead]) => `at ${quality(top1)} ${ahead > 0 ? a : b} is ${times(ahead)} ${less}`);
    const points = crossings.map((top1) => `${quality(top1)} (${cost(costAt(first, top1))})`);
    sentences.push(`${where} they cross at ${points.join(", ")}: ${ends.join(", ")}.`);
  }
  return [...sentences, ...beyond(a, first, b, second, cost)].join(" ");
}

// Warn about other settings in which the curves differ.
function differing(curve, other) {
  const keys = Object.keys(SETTING).filter((key) => curve[key] !== other[key]);
  return keys.length ? [`Different ${keys.map((key) => SETTING[key]).join(" and ")}: the recipe is not the only difference.`] : [];
}

// Compare the qualities at the largest common cost, and report which curve reaches better ones.
function beyond(a, first, b, second, cost) {
  const budget = Math.min(first.at(-1).cost, second.at(-1).cost), sentences = [];
  if (budget >= Math.max(first[0].cost, second[0].cost)) {
    const gain = qualityAt(first, budget) - qualityAt(second, budget);
    sentences.push(`At ${cost(budget)} ${gain >= 0 ? a : b} has ${quality(qualityAt(gain >= 0 ? first : second, budget))}, ${number(Math.abs(gain), 2)}${UNIT && " points"} ${SIGN < 0 ? "less" : "more"}.`);
  }
  const tops = [first, second].map((points) => extent(points.map((point) => point.top1))[1]);
  if (tops[0] !== tops[1]) sentences.push(`Only ${tops[0] > tops[1] ? a : b} was measured ${SIGN < 0 ? "below" : "above"} ${quality(Math.min(...tops))}, ${SIGN < 0 ? "down" : "up"} to ${quality(Math.max(...tops))}.`);
  return sentences;
}

function keyOf(curve) {
  return JSON.stringify([curve.name, curve.dataset, curve.model, curve.hardware, curve.published]);
}

function option(curve) {
  return make("option", { value: keyOf(curve) }, shown.named.get(curve));
}

// Fill a list with all curves when it is opened, since thousands of names would slow down each filter.
function fillPair(list) {
  const chosen = list.value;
  if (list.options.length === 1) list.replaceChildren(...shown.curves.map(option));
  list.value = chosen;
}

// Draw the two lists of curves, and the comparison of the chosen ones.
function drawWords() {
  const { curves } = shown, byKey = new Map(curves.map((curve) => [keyOf(curve), curve]));
  find("pair").hidden = curves.length < 2;
  if (curves.length < 2) return;
  const others = curves.filter((curve) => !state.pair.includes(keyOf(curve)));
  const pair = state.pair.map((key) => byKey.get(key) || others.shift());
  find("pair").querySelectorAll("select").forEach((list, at) => list.replaceChildren(option(pair[at])));
  find("words").textContent = pair[0] === pair[1] ? "Choose two curves." : inWords(...pair);
}

// The table of runs, and the details of a point or run.
const MORE_ROWS = 50;
let most = MORE_ROWS;
const inOrder = new Intl.Collator();
const COLUMNS = [
  ["name", "run", "long"], ["curve", "recipe"], ["model", "model", "wide"], ["dataset", "data set", "wide long"],
  ["hardware", "hardware", "wide"], ["epochs", "epochs", "number"], ["seed", "seed", "number wide"],
  ["top1", null, "number"], ["time", "minutes", "number"], ["wall", "wall clock", "number wide"],
  ["money", data.currency, "number wide"], ["state", "state"],
];

function sortedRuns() {
  const key = state.sort, sign = state.descending ? -1 : 1;
  const empty = (value) => value === null || value === undefined;
  return [...shown.runs].sort((a, b) => {
    if (empty(a[key]) || empty(b[key])) return empty(a[key]) - empty(b[key]);
    return sign * (typeof a[key] === "number" ? a[key] - b[key] : inOrder.compare(a[key], b[key]));
  });
}

function drawTable() {
  const head = COLUMNS.map(([key, label, kind]) => make("th",
    { class: kind || "", scope: "col", "aria-sort": state.sort === key ? (state.descending ? "descending" : "ascending") : "none" },
    make("button", { type: "button", onclick: () => sortBy(key) }, (label ?? METRIC + UNIT) + (state.sort === key ? (state.descending ? " ▼" : " ▲") : ""))));
  find("runs").tHead.replaceChildren(make("tr", {}, ...head));
  const runs = sortedRuns(), rows = runs.slice(0, most);
  find("runs").tBodies[0].replaceChildren(...rows.map(rowOf));
  find("runs-caption").textContent = `${runs.length} of ${data.runs.length} runs` + (rows.length < runs.length ? `, showing the first ${rows.length}` : "");
  find("more").hidden = rows.length === runs.length;
  find("more").textContent = `show ${Math.min(MORE_ROWS, runs.length - rows.length)} more of ${runs.length} runs`;
}

// Return a run's row, which is made once; filters only select rows.
function rowOf(run) {
  run.row ||= make("tr", { class: run.state === "finished" ? "" : "odd-state" },
    ...COLUMNS.map(([key, , kind]) => make("td", { class: kind || "" }, cell(run, key))));
  return run.row;
}

function cell(run, key) {
  if (key === "name") return make("button", { type: "button", onclick: () => openRun(run) }, run.name);
  if (key === "state") return run.state + (run.problem ? `: ${run.problem}` : "");
  const value = run[key];
  return typeof value === "number" ? (key === "seed" ? String(value) : number(value)) : value === null ? "–" : String(value);
}

function sortBy(key) {
  state.descending = state.sort === key && !state.descending;
  state.sort = key;
  drawTable();
  writeAddress();
  const at = COLUMNS.findIndex(([name]) => name === key);
  find("runs").tHead.rows[0].cells[at].firstChild.focus();
}

function configOf(run) {
  const values = { ...data.base };
  for (const [key, value] of Object.entries(run.changes)) values[data.keys[key]] = value;
  for (const key of run.missing) delete values[data.keys[key]];
  return data.keys.filter((key) => key in values).map((key) => `${key}: ${JSON.stringify(values[key])}`).join("\n");
}

function runDetails(run, open) {
  return make("details", { open },
    make("summary", {}, `${run.name}${run.seed === null ? "" : `, seed ${run.seed}`}: ${number(run.top1)}${UNIT} ${METRIC}, ${number(run.time)} min, ${run.state}`),
    ...(run.problem ? [make("p", {}, run.problem)] : []),
    make("h3", {}, "command"), make("pre", {}, run.command || "not recorded"),
    make("h3", {}, "config"), make("pre", {}, configOf(run) || "cannot be read"));
}

let focusBefore = null;

function openDetails(title, ...content) {
  focusBefore = focusBefore || document.activeElement;
  find("details-title").textContent = title;
  find("details-body").replaceChildren(...content);
  find("details").hidden = false;
  find("details").focus();
  find("details").scrollIntoView({ block: "nearest" });
}

function openPoint(point) {
  state.selected = point.curve.published ? null : point;
  const curve = point.curve;
  const facts = Object.keys(AXES).filter((axis) => point.cost[axis]).map((axis) => `${AXES[axis]}: ${plusMinus(point.cost[axis])}`);
  const summary = make("p", {}, [`${METRIC}: ${qualities(point.top1)}`, ...facts, curve.hardware].join(" · "));
  const rest = curve.published
    ? [make("p", {}, `Published: ${curve.source}.${point.note ? ` ${point.note}` : ""}`)]
    : point.runs.map((index, at) => runDetails(data.runs[index], at === 0));
  openDetails(`${curve.name}${point.epochs ? `, ${point.epochs} epochs` : ""}`, summary, ...rest);
  drawLearning();
  writeAddress();
}

function openRun(run) {
  state.selected = { runs: [run.index] };
  openDetails(run.name, runDetails(run, true));
  drawLearning();
  writeAddress();
}

function closeDetails() {
  find("details").hidden = true;
  state.selected = null;
  drawLearning();
  writeAddress();
  if (focusBefore && focusBefore.isConnected) focusBefore.focus();
  focusBefore = null;
}

function saveCsv() {
  const quote = (value) => (value === null || value === undefined ? "" : `"${String(value).replaceAll('"', '""')}"`);
  const rows = [COLUMNS.map(([key]) => key), ...sortedRuns().map((run) => COLUMNS.map(([key]) => run[key]))];
  const text = rows.map((row) => row.map(quote).join(",")).join("\r\n");
  const link = make("a", { download: "runs.csv", href: URL.createObjectURL(new Blob([text], { type: "text/csv" })) });
  link.click();
  URL.revokeObjectURL(link.href);
}

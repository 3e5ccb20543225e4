// The table of runs, and a point's or a run's details.
const MORE_ROWS = 50;
let most = MORE_ROWS;
const inOrder = new Intl.Collator();
const COLUMNS = [
  ["name", "run", "long"], ["curve", "recipe"], ["model", "model", "wide"], ["dataset", "data set", "wide long"],
  ["hardware", "hardware", "wide"], ["epochs", "epochs", "number"], ["seed", "seed", "number wide"],
  ["top1", "top-1 %", "number"], ["time", "minutes", "number"], ["wall", "wall clock", "number wide"],
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
    make("button", { type: "button", onclick: () => sortBy(key) }, label + (state.sort === key ? (state.descending ? " ▼" : " ▲") : ""))));
  find("runs").tHead.replaceChildren(make("tr", {}, ...head));
  const runs = sortedRuns(), rows = runs.slice(0, most);
  find("runs").tBodies[0].replaceChildren(...rows.map(rowOf));
  find("runs-caption").textContent = `${runs.length} of ${data.runs.length} runs` + (rows.length < runs.length ? `, the first ${rows.length} here` : "");
  find("more").hidden = rows.length === runs.length;
  find("more").textContent = `show ${Math.min(MORE_ROWS, runs.length - rows.length)} more of ${runs.length} runs`;
}

// A run's row, made once: a filter only chooses among them.
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
    make("summary", {}, `${run.name}${run.seed === null ? "" : `, seed ${run.seed}`}: ${number(run.top1)} % top-1, ${number(run.time)} min, ${run.state}`),
    ...(run.problem ? [make("p", {}, run.problem)] : []),
    make("h3", {}, "command"), make("pre", {}, run.command || "not recorded"),
    make("h3", {}, "config"), make("pre", {}, configOf(run) || "cannot be read"));
}

let cameFrom = null;

function openDetails(title, ...content) {
  cameFrom = cameFrom || document.activeElement;
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
  const told = make("p", {}, [`top-1: ${plusMinus(point.top1)} %`, ...facts, curve.hardware].join(" · "));
  const rest = curve.published
    ? [make("p", {}, `Published: ${curve.source}.${point.note ? ` ${point.note}` : ""}`)]
    : point.runs.map((index, at) => runDetails(data.runs[index], at === 0));
  openDetails(`${curve.name}${point.epochs ? `, ${point.epochs} epochs` : ""}`, told, ...rest);
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
  if (cameFrom && cameFrom.isConnected) cameFrom.focus();
  cameFrom = null;
}

function saveCsv() {
  const quote = (value) => (value === null || value === undefined ? "" : `"${String(value).replaceAll('"', '""')}"`);
  const rows = [COLUMNS.map(([key]) => key), ...sortedRuns().map((run) => COLUMNS.map(([key]) => run[key]))];
  const text = rows.map((row) => row.map(quote).join(",")).join("\r\n");
  const link = make("a", { download: "runs.csv", href: URL.createObjectURL(new Blob([text], { type: "text/csv" })) });
  link.click();
  URL.revokeObjectURL(link.href);
}

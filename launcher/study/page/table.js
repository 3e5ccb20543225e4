// The table of runs, a point's or a run's details, the filters; and the first drawing.
const MOST_ROWS = 200;
const COLUMNS = [
  ["name", "run", "long"], ["curve", "recipe"], ["model", "model", "wide"], ["dataset", "data set", "wide long"],
  ["hardware", "hardware", "wide"], ["epochs", "epochs", "number"], ["seed", "seed", "number wide"],
  ["top1", "top-1 %", "number"], ["time", "minutes", "number"], ["wall", "wall clock", "number wide"],
  ["money", data.currency, "number wide"], ["state", "state"],
];

function sortedRuns() {
  const key = state.sort, sign = state.descending ? -1 : 1;
  const empty = (value) => value === null || value === undefined;
  return shownRuns().sort((a, b) => {
    if (empty(a[key]) || empty(b[key])) return empty(a[key]) - empty(b[key]);
    return sign * (typeof a[key] === "number" ? a[key] - b[key] : String(a[key]).localeCompare(String(b[key])));
  });
}

function drawTable() {
  const head = COLUMNS.map(([key, label, kind]) => make("th",
    { class: kind || "", scope: "col", "aria-sort": state.sort === key ? (state.descending ? "descending" : "ascending") : "none" },
    make("button", { type: "button", onclick: () => sortBy(key) }, label + (state.sort === key ? (state.descending ? " ▼" : " ▲") : ""))));
  find("runs").tHead.replaceChildren(make("tr", {}, ...head));
  const runs = sortedRuns(), shown = state.all ? runs : runs.slice(0, MOST_ROWS);
  find("runs").tBodies[0].replaceChildren(...shown.map((run) => make("tr", { class: run.state === "finished" ? "" : "odd-state" },
    ...COLUMNS.map(([key, , kind]) => make("td", { class: kind || "" }, cell(run, key))))));
  find("runs-caption").textContent = `${runs.length} of ${data.runs.length} runs`;
  find("more").hidden = shown.length === runs.length;
  find("more").textContent = `show all ${runs.length} runs`;
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
}

function openRun(run) {
  state.selected = { runs: [run.index] };
  openDetails(run.name, runDetails(run, true));
  drawLearning();
}

function closeDetails() {
  find("details").hidden = true;
  state.selected = null;
  drawLearning();
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

function redraw() {
  drawTradeoff();
  drawLegend();
  drawLearning();
  drawTable();
  find("front-of").textContent = toldFront();
  find("scope").textContent = Object.values(state.chosen).filter((value) => value !== null).join(", ");
  const off = Object.values(state.off).reduce((sum, values) => sum + values.size, 0);
  find("filtered").textContent = off ? `(${off} hidden)` : "";
  find("said").textContent = `${shownPoints().length} points, ${shownRuns().length} runs shown`;
}

// What the front goes across, and what that leaves to be known.
function toldFront() {
  const [open, within] = [true, false].map((across) => Object.keys(SETTING).filter((key) => state.across.has(key) === across).map((key) => SETTING[key]));
  const told = [open.length ? `across ${open.join("s and ")}s, as asked` : "", within.length ? `one for each ${within.join(", ")}` : ""].filter(Boolean).join(", ");
  const time = state.across.has("hardware") && (state.axis === "time" || state.axis === "wall");
  const unpriced = state.across.has("hardware") && state.axis === "money" && data.curves.some((curve) => curve.points.some((point) => !point.cost.money));
  return told + (time ? "; minutes of different machines: a faster machine counts as much as a faster method" : "")
    + (unpriced ? "; machines without a known price are left out" : "")
    + (state.across.has("dataset") ? "; top-1 of different data sets: of which pictures it is counts as much as the method" : "");
}

// A switch each for data sets, models and machines, where there are several.
function buildAcross() {
  const several = Object.keys(SETTING).filter((key) => new Set(data.curves.map((curve) => curve[key])).size > 1);
  find("across").hidden = !several.length;
  find("across").querySelector(".row").replaceChildren(...several.map((key) => make("label", { class: "check" },
    make("input", { type: "checkbox", name: "across", value: key, checked: state.across.has(key), onchange: (event) => {
      state.across[event.target.checked ? "add" : "delete"](key);
      if (event.target.checked && key === "hardware" && state.axis !== "money") find("axes").querySelector("[value=money]")?.click();
      openAcross();
      begin();
      buildChooser();
      buildFilters();
      redraw();
    } }), `${SETTING[key]}s`)));
}

function buildControls() {
  // note: a cost that published points alone have would show none of the runs
  const known = Object.keys(AXES).filter((axis) => (own.length ? own : data.curves).some((curve) => curve.points.some((point) => point.cost[axis])));
  if (known.length && !known.includes(state.axis)) state.axis = known[0];
  find("axes").append(...known.map((axis) => make("label", { class: "check" },
    make("input", { type: "radio", name: "axis", value: axis, checked: axis === state.axis, onchange: () => { state.axis = axis; redraw(); } }), AXES[axis])));
  buildAcross();
  buildChooser();
  buildFilters();
  find("published").closest("label").hidden = !data.curves.some((curve) => curve.published);
  find("published").addEventListener("change", (event) => { state.published = event.target.checked; redraw(); });
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  find("close").addEventListener("click", closeDetails);
  find("more").addEventListener("click", () => { state.all = true; drawTable(); });
  find("csv").addEventListener("click", saveCsv);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !find("details").hidden) closeDetails(); });
}

// One list each of data sets, models and machines, where there are several.
function buildChooser() {
  const several = Object.entries(SETTING).filter(([key]) => choices[key].length > 1);
  find("setting").hidden = !several.length;
  find("setting").replaceChildren(...several.map(([key, label]) => {
    const options = choices[key].map((value) => make("option", { value, selected: state.chosen[key] === value },
      `${value} (${data.runs.filter((run) => run[key] === value).length} runs)`));
    options.push(make("option", { value: "", selected: state.chosen[key] === null }, "all, each with its own front"));
    const chosen = (event) => {
      choose(key, event.target.value || null);
      if (!find("details").hidden) closeDetails();
      buildChooser();
      buildFilters();
      redraw();
      find("setting").querySelector(`[name=${key}]`).focus();
    };
    return make("label", {}, label, make("select", { name: key, onchange: chosen }, ...options));
  }));
}

function buildFilters() {
  find("filter-groups").replaceChildren();
  for (const [name, label] of Object.entries(FILTERS)) {
    const values = [...new Set(data.runs.filter(isChosen).map((run) => run[name]))];
    values.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
    if (values.length < 2) continue;
    const boxes = values.map((value) => make("input", { type: "checkbox", checked: true, name, value: String(value), onchange: (event) => {
      state.off[name][event.target.checked ? "delete" : "add"](String(value));
      redraw();
    } }));
    const setAll = (checked) => {
      boxes.forEach((box) => { box.checked = checked; });
      state.off[name] = new Set(checked ? [] : values.map(String));
      redraw();
    };
    find("filter-groups").append(make("fieldset", {}, make("legend", {}, label),
      make("div", { class: "row" }, make("button", { type: "button", onclick: () => setAll(true) }, "all"), make("button", { type: "button", onclick: () => setAll(false) }, "none")),
      make("div", { class: "choices" }, ...boxes.map((box, index) => make("label", { class: "check" }, box, values[index] === null ? "unknown" : String(values[index]))))));
  }
  find("filters").hidden = !find("filter-groups").children.length;
  find("published").checked = state.published;
}

const states = data.runs.reduce((counts, run) => ({ ...counts, [run.state]: (counts[run.state] || 0) + 1 }), {});
find("summary").textContent = Object.entries(states).map(([name, count]) => `${count} ${name}`).join(", ") + `. Written ${data.written}.`;
buildControls();
redraw();
let width = document.body.clientWidth;
window.addEventListener("resize", () => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  drawTradeoff();
  drawLearning();
});

// The lists, switches and filters, and the first drawing.
// Return a count with its noun.
function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function redraw() {
  findShown();
  most = MORE_ROWS;
  drawTradeoff();
  drawLegend();
  drawWords();
  drawLearning();
  drawTable();
  find("front-of").textContent = frontText();
  const only = choices.dataset.length === 1 ? choices.dataset : [];
  find("scope").textContent = [...only, ...Object.values(state.chosen).filter((value) => value !== null)].join(", ");
  // note: one run is its learning curve, not a point alone
  find("tradeoff").closest("section").hidden = data.runs.length === 1 && !shown.curves.some((curve) => curve.published);
  const off = Object.values(state.off).reduce((sum, values) => sum + values.size, 0);
  find("filtered").textContent = off ? `(${off} hidden)` : "";
  find("status").textContent = `${counted(shown.points.length, "point")}, ${counted(shown.runs.length, "run")} shown`;
}

function update() {
  redraw();
  writeAddress();
}

// Describe the settings that the front covers, with warnings.
function frontText() {
  const [open, within] = [true, false].map((across) => Object.keys(SETTING).filter((key) => state.across.has(key) === across).map((key) => SETTING[key]));
  const scope = [open.length ? `across ${open.join("s and ")}s` : "", within.length ? `one for each ${within.join(", ")}` : ""].filter(Boolean).join(", ");
  const time = state.across.has("hardware") && (state.axis === "time" || state.axis === "wall");
  const unpriced = state.across.has("hardware") && state.axis === "money" && data.curves.some((curve) => curve.points.some((point) => !point.cost.money));
  return scope + (time ? "; the machines differ, so a faster machine looks like a faster recipe" : "")
    + (unpriced ? "; machines without a known price are excluded" : "")
    + (state.across.has("dataset") ? "; the data sets differ, so easier images look like a better recipe" : "");
}

// Build a switch each for data sets, models and machines, if there are several.
function buildAcross() {
  const several = Object.keys(SETTING).filter((key) => new Set(data.curves.map((curve) => curve[key])).size > 1);
  const change = (key, on) => {
    state.across[on ? "add" : "delete"](key);
    if (on && key === "hardware" && knownAxes().includes("money")) state.axis = "money";
    openAcross();
    reset();
    closeDetails();
    buildControls();
    update();
    find("across").querySelector(`[value=${key}]`).focus();
  };
  find("across").hidden = !several.length;
  find("across").querySelector(".row").replaceChildren(...several.map((key) => make("label", { class: "check" },
    make("input", { type: "checkbox", name: "across", value: key, checked: state.across.has(key), onchange: (event) => change(key, event.target.checked) }), `${SETTING[key]}s`)));
}

// note: a cost that only published points have would show no run
function knownAxes() {
  return Object.keys(AXES).filter((axis) => (own.length ? own : data.curves).some((curve) => curve.points.some((point) => point.cost[axis])));
}

function buildControls() {
  const known = knownAxes();
  if (known.length && !known.includes(state.axis)) state.axis = known[0];
  find("axes").replaceChildren(...known.map((axis) => make("label", { class: "check" },
    make("input", { type: "radio", name: "axis", value: axis, checked: axis === state.axis, onchange: () => { state.axis = axis; update(); } }), AXES[axis])));
  buildAcross();
  buildChooser();
  buildFilters();
  find("published").closest("label").hidden = !data.curves.some((curve) => curve.published);
}

function choosePair(at, key) {
  state.pair[at] = key;
  drawWords();
  writeAddress();
  fillPair(find("pair").querySelectorAll("select")[at]);
}

function listen() {
  find("published").addEventListener("change", (event) => { state.published = event.target.checked; update(); });
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  find("close").addEventListener("click", closeDetails);
  find("more").addEventListener("click", () => { most += MORE_ROWS; drawTable(); });
  find("csv").addEventListener("click", saveCsv);
  find("pair").querySelectorAll("select").forEach((list, at) => {
    for (const kind of ["focus", "pointerdown"]) list.addEventListener(kind, () => fillPair(list));
    list.addEventListener("change", () => choosePair(at, list.value));
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !find("details").hidden) closeDetails(); });
  window.addEventListener("hashchange", follow);
  let width = document.body.clientWidth;
  window.addEventListener("resize", () => {
    if (document.body.clientWidth === width) return;
    [width, pageWidth] = [document.body.clientWidth, 0];
    drawTradeoff();
    drawLearning();
  });
}

// Build a list each of data sets, models and machines, if there are several.
function buildChooser() {
  const several = Object.entries(SETTING).filter(([key]) => choices[key].length > 1);
  find("setting").hidden = !several.length;
  find("setting").replaceChildren(...several.map(([key, label]) => {
    const counts = new Map();
    for (const run of data.runs) counts.set(run[key], (counts.get(run[key]) || 0) + 1);
    const options = choices[key].map((value) => make("option", { value, selected: state.chosen[key] === value },
      `${value} (${counts.get(value)} runs)`));
    options.push(make("option", { value: "", selected: state.chosen[key] === null }, state.across.has(key) ? "all, with one front" : "all, each with its own front"));
    const chosen = (event) => {
      choose(key, event.target.value || null);
      if (!find("details").hidden) closeDetails();
      buildChooser();
      buildFilters();
      update();
      find("setting").querySelector(`[name=${key}]`).focus();
    };
    return make("label", {}, label, make("select", { name: key, onchange: chosen }, ...options));
  }));
}

function buildFilters() {
  find("filter-groups").replaceChildren();
  for (const [name, label] of Object.entries(FILTERS)) {
    const values = [...new Set(data.runs.filter(isChosen).map((run) => run[name]))];
    values.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : inOrder.compare(a, b)));
    if (values.length < 2) continue;
    const boxes = values.map((value) => make("input", { type: "checkbox", checked: !state.off[name].has(String(value)), name, value: String(value), onchange: (event) => {
      state.off[name][event.target.checked ? "delete" : "add"](String(value));
      update();
    } }));
    const setAll = (checked) => {
      boxes.forEach((box) => { box.checked = checked; });
      state.off[name] = new Set(checked ? [] : values.map(String));
      update();
    };
    find("filter-groups").append(make("fieldset", {}, make("legend", {}, label),
      make("div", { class: "row" }, make("button", { type: "button", onclick: () => setAll(true) }, "all"), make("button", { type: "button", onclick: () => setAll(false) }, "none")),
      make("div", { class: "choices" }, ...boxes.map((box, index) => make("label", { class: "check" }, box, values[index] === null ? "unknown" : String(values[index]))))));
  }
  find("filters").hidden = !find("filter-groups").children.length;
  find("published").checked = state.published;
}

const states = new Map();
for (const run of data.runs) states.set(run.state, (states.get(run.state) || 0) + 1);
find("summary").textContent = [...states].map(([name, count]) => `${count} ${name}`).join(", ") + `. Written ${data.written}.`;
listen();
follow();

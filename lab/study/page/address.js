// The page's address holds what is shown, so that a link to it shows the same: after `#`, as a form would send it.
function writeAddress() {
  const words = new URLSearchParams({ axis: state.axis, published: state.published ? "yes" : "no", sort: (state.descending ? "-" : "") + state.sort });
  for (const key of Object.keys(SETTING)) {
    if (choices[key].length > 1) words.append(...(state.chosen[key] === null ? ["all", key] : [key, state.chosen[key]]));
  }
  for (const key of state.across) words.append("across", key);
  for (const name of Object.keys(FILTERS)) {
    const off = [...state.off[name]], on = FOUND[name].filter((value) => !state.off[name].has(value));
    // note: the shorter list, since a thousand recipes can be hidden at once
    if (off.length > on.length) words.append("only", name);
    if (off.length) for (const value of off.length > on.length ? on : off) words.append(`${off.length > on.length ? "show" : "hide"}-${name}`, value);
  }
  for (const key of state.pair) if (key) words.append("pair", key);
  for (const index of state.selected ? state.selected.runs : []) words.append(state.selected.curve ? "of" : "run", data.runs[index].name);
  try {
    history.replaceState(null, "", `#${words}`);
  } catch {
    // note: browsers refuse where a page has no address of its own, or it changed too often
  }
}

const FOUND = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, [...new Set(data.runs.map((run) => String(run[name])))]]));

// What the address asks for, as far as these runs have it; the rest stays. Gives the point or the run to open.
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1)), asked = (key) => words.getAll(key);
  if (words.get("axis") in AXES) state.axis = words.get("axis");
  for (const key of Object.keys(SETTING)) {
    if (asked("all").includes(key)) state.chosen[key] = null;
    if (choices[key].length > 1 && choices[key].includes(words.get(key))) state.chosen[key] = words.get(key);
  }
  if (words.has("axis")) state.across = new Set(asked("across").filter((key) => key in SETTING));
  for (const name of Object.keys(FILTERS)) {
    const kept = new Set(asked(`show-${name}`)), hidden = new Set(asked(`hide-${name}`));
    const off = (value) => (asked("only").includes(name) ? !kept.has(value) : hidden.has(value));
    if (words.has("axis")) state.off[name] = new Set(FOUND[name].filter(off));
  }
  if (words.has("published")) state.published = words.get("published") === "yes";
  const sort = (words.get("sort") || "").replace(/^-/, "");
  if (COLUMNS.some(([key]) => key === sort)) [state.sort, state.descending] = [sort, words.get("sort").startsWith("-")];
  asked("pair").slice(0, 2).forEach((key, at) => { state.pair[at] = key; });
  const numbers = new Map(data.runs.map((run) => [run.name, run.index])), of = asked("of").map((name) => numbers.get(name));
  const point = of.length && data.curves[data.runs[of[0]]?.curveIndex]?.points.find((one) => one.runs.join() === of.join());
  return { point, run: data.runs[numbers.get(words.get("run"))] };
}

// Show what the address asks for.
function follow() {
  const { point, run } = readAddress();
  buildControls();
  redraw();
  if (point) openPoint(point);
  else if (run) openRun(run);
  else if (!find("details").hidden) closeDetails();
}

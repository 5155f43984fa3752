// The bar and the legend: search, groups, what colours, shapes and lines mean.
const query = document.getElementById("query");
const results = document.getElementById("results");
const groupList = document.getElementById("group-list");
const MOST_RESULTS = 40;

function find(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const found = [];
  nodes.forEach((node, at) => {
    const name = node.name.toLowerCase();
    const about = [node.kind, node.engine, node.role, node.group, node.status, ...node.owners].join(" ").toLowerCase();
    const column = node.columns.find(([one]) => words.every((word) => one.toLowerCase().includes(word)));
    if (words.every((word) => name.includes(word))) found.push([name.split(".").pop().startsWith(words[0]) ? 0 : 1, at, node.kind]);
    else if (words.every((word) => name.includes(word) || about.includes(word))) found.push([2, at, node.kind]);
    else if (column) found.push([3, at, `column ${column[0]}`]);
  });
  return found.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

let matches = [];
let marked = 0;
function search() {
  matches = find(query.value);
  marked = 0;
  const hit = new Set(matches.map(([, at]) => nodes[at]));
  filter = query.value.trim() ? (node) => hit.has(node) : null;
  pressed = null;
  showResults();
  refreshHighlight();
}

function showResults() {
  results.hidden = !query.value.trim();
  results.replaceChildren(...matches.slice(0, MOST_RESULTS).map(([, at, why], number) => make("li", {
    role: "option", "aria-selected": number === marked ? "true" : "false", onpointerdown: (event) => { event.preventDefault(); take(number); },
  }, make("span", { class: `dot ${nodes[at].status}` }), nodes[at].name, make("small", {}, why))));
  if (!matches.length) results.append(make("li", {}, make("small", {}, "nothing found")));
  if (matches.length > MOST_RESULTS) results.append(make("li", {}, make("small", {}, `and ${matches.length - MOST_RESULTS} more`)));
  const current = results.children[marked];
  if (current && marked) current.scrollIntoView({ block: "nearest" });
}

function take(number) {
  if (!matches[number]) return;
  const at = matches[number][1];
  clearSearch();
  choose(at, { move: true });
}

function clearSearch() {
  query.value = "";
  filter = null;
  results.hidden = true;
  query.blur();
  refreshHighlight();
}

query.addEventListener("input", search);
query.addEventListener("focus", showResults);
query.addEventListener("blur", () => { results.hidden = true; });
query.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key === "Enter") take(marked);
  else if (event.key === "Escape") clearSearch();
  else if (steps[event.key]) { marked = Math.max(0, Math.min(Math.min(matches.length, MOST_RESULTS) - 1, marked + steps[event.key])); showResults(); }
  else return;
  event.preventDefault();
  event.stopPropagation();
});

function setCollapsed(group, on) {
  if (on) collapsed.add(group); else collapsed.delete(group);
  draw();
  applyCamera();
  showGroups();
}

function collapseAll(on) {
  collapsed.clear();
  if (on) for (const group of members.keys()) collapsed.add(group);
  choose(null);
  draw();
  fit(true);
  showGroups();
}

function showGroups() {
  groupList.replaceChildren(
    make("p", {}, make("button", { onclick: () => collapseAll(true) }, "Collapse all"), make("button", { onclick: () => collapseAll(false) }, "Expand all")),
    ...[...members].map(([group, inside]) => {
      const box = make("input", { type: "checkbox", onchange: () => { setCollapsed(group, !box.checked); fit(true); } });
      box.checked = !collapsed.has(group);
      return make("label", {}, box, make("span", { class: `dot ${worst(inside)}` }), group, make("small", {}, `${inside.length}`));
    }),
  );
}

const groupButton = document.getElementById("groups");
groupButton.addEventListener("click", () => {
  groupList.hidden = !groupList.hidden;
  groupButton.setAttribute("aria-expanded", String(!groupList.hidden));
  groupList.style.left = `${Math.max(8, groupButton.getBoundingClientRect().left)}px`;
  showGroups();
});
addEventListener("pointerdown", (event) => {
  if (!groupList.hidden && !groupList.contains(event.target) && event.target !== groupButton) groupList.hidden = true;
});

let pressed = null;
function press(name, test) {
  pressed = pressed === name ? null : name;
  filter = pressed ? test : null;
  choose(null);
  showLegend();
}

const SHAPES = [
  ["source", "source: inserts fire views"], ["view", "materialized view"], ["refreshable", "refreshable view"], ["target", "target: written by views"],
  ["lookup", "lookup or dictionary"], ["plain", "plain view"], ["external", "external, not declared"], ["other", "other table"],
];
const EDGES = [
  ["trigger", "trigger: an insert fires the view"], ["writes", "writes: the view inserts"], ["lookup", "lookup: read, fires nothing"],
  ["feeds", "feeds: shows or forwards"], ["after", "after: refresh order"],
];

function entry(name, picture, text, test) {
  if (!test) return [picture, make("span", {}, text)];
  return [make("button", { "aria-pressed": pressed === name ? "true" : "false", onclick: () => press(name, test) }, picture, make("span", {}, text))];
}

function swatch(width, height, ...children) {
  return makeSvg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...children);
}

function showLegend() {
  const legend = document.getElementById("legend");
  const open = legend.firstChild ? legend.firstChild.open : innerWidth > 900 && nodes.length <= 60;
  const statuses = STATUSES.flatMap((status) => {
    const count = nodes.filter((node) => node.status === status).length;
    const dot = make("span", { class: `dot ${status}` });
    return count ? entry(`status ${status}`, dot, `${status} ${count}`, (node) => node.status === status) : [];
  });
  const shapes = SHAPES.flatMap(([shape, text]) => {
    const count = nodes.filter((node) => node.shape === shape).length;
    const mini = swatch(34, 18, makeSvg("g", { class: `node ${shape}`, transform: "translate(1 2) scale(.32 .32)" },
      makeSvg("path", { class: "body", d: outline(shape, 100, 42), "stroke-width": 4 }), makeSvg("path", { class: "fold", d: fold(shape, 100, 42) })));
    return count ? entry(`shape ${shape}`, mini, `${text} (${count})`, (node) => node.shape === shape) : [];
  });
  const edges = EDGES.flatMap(([kind, text]) => {
    const stroke = swatch(44, 14, makeSvg("g", { class: `edge ${kind}` }, makeSvg("path", { class: "line", d: "M0 7H34", "stroke-width": 2 }), makeSvg("path", { class: "head", d: head(kind, 43, 7, 10, 1) })));
    return data.edges.some((edge) => edge.kind === kind) ? entry(kind, stroke, text) : [];
  });
  const known = data.edges.filter((edge) => edge.rows !== null);
  const most = known.reduce((top, edge) => (edge.rows > (top ? top.rows : -1) ? edge : top), null);
  const least = known.reduce((low, edge) => (edge.rows < (low ? low.rows : Infinity) ? edge : low), null);
  const widths = (known.length ? [least, most] : []).flatMap((edge) => entry("width", swatch(44, 14, makeSvg("g", { class: "edge" }, makeSvg("path", { class: "line", d: "M0 7H44", "stroke-width": edge.width }))), `${format(edge.rows)} rows`));
  const said = data.taken ? [] : ["No server was asked: statuses are unknown and all edges are as wide. --live-status asks one."];
  legend.replaceChildren(make("details", { open: open },
    make("summary", {}, "Legend"),
    make("div", { class: "rows" }, make("div", {}, ...widths, ...edges), make("div", {}, ...shapes)),
    ...[...said, ...data.notes].map((note) => make("p", {}, note))),
    make("div", { class: "statuses" }, ...statuses));
  refreshHighlight();
}

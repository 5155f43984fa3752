// What stands out: what is chosen or under the pointer with all that it depends on and all that depends on it, or what a filter names.
let chosen = null; // an item's key: a node's number or a group's name
let hovered = null;
let filter = null; // (node) => whether it is meant
const tip = document.getElementById("tip");

function keyOf(item) {
  return item.group ? item.group : item.at;
}

function itemOf(key) {
  if (key === null) return null;
  return scene.items.find((item) => keyOf(item) === key) || (typeof key === "number" ? scene.itemOf[key] : null);
}

function refreshHighlight() {
  const item = itemOf(hovered) || itemOf(chosen);
  const up = item ? reach(item.members, upstream, "from") : new Set();
  const down = item ? reach(item.members, downstream, "to") : new Set();
  const own = new Set(item ? item.members : []);
  const picked = itemOf(chosen);
  svg.classList.toggle("focusing", Boolean(item || filter));
  for (const one of scene.items) {
    const isUp = one !== item && one.members.some((at) => up.has(at));
    const isDown = one !== item && one.members.some((at) => down.has(at));
    const meant = Boolean(filter) && one.members.some((at) => filter(nodes[at]));
    const names = one.element.classList;
    names.toggle("up", isUp);
    names.toggle("down", isDown && !isUp);
    names.toggle("chosen", one === picked);
    names.toggle("found", meant && !item && !pressed); // a pressed legend shows statuses, so colours stay
    names.toggle("near", item ? one === item || isUp || isDown : meant);
  }
  const within = (end, set) => end.members.some((at) => set.has(at) || own.has(at));
  for (const edge of scene.edges) {
    const near = item && ((within(edge.from, up) && within(edge.to, up)) || (within(edge.from, down) && within(edge.to, down)));
    edge.element.classList.toggle("near", Boolean(near));
  }
}

function showTip(event, title, lines) {
  tip.replaceChildren(make("b", {}, title), ...lines.filter(Boolean).map((text) => make("span", {}, text)));
  tip.hidden = false;
  const area = svg.getBoundingClientRect();
  const left = Math.min(event.clientX - area.left + 14, area.width - tip.offsetWidth - 8);
  const below = event.clientY - area.top + 16;
  const top = below + tip.offsetHeight > area.height ? event.clientY - area.top - tip.offsetHeight - 10 : below;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function tellItem(event, item) {
  if (item.group) {
    showTip(event, `group ${item.group}`, [`${item.members.length} objects, ${item.status}`, "double click: expand"]);
  } else {
    const node = item.node;
    showTip(event, node.name, [`${node.kind}${node.engine && node.engine !== "MaterializedView" ? ` · ${node.engine}` : ""} · ${node.status}`, node.why[0], node.rows === null ? "" : `${format(node.rows)} rows`]);
  }
}

const KINDS = {
  trigger: "fires", writes: "writes into", lookup: "is looked up by", feeds: "feeds", after: "is refreshed before",
};

function tellEdge(event, edge) {
  const end = (item) => (item.group ? `group ${item.group}` : item.node.name);
  const rows = edge.rows === null ? "rows are not known" : `${format(edge.rows)} rows ${edge.basis}`;
  showTip(event, `${end(edge.from)} → ${end(edge.to)}`, [`${edge.kind}: ${KINDS[edge.kind]}${edge.count > 1 ? `, ${edge.count} edges` : ""}`, rows]);
}

svg.addEventListener("pointermove", (event) => {
  if (fingers.size) { tip.hidden = true; return; }
  const over = event.target.closest(".node, .edge");
  const item = over && over.item;
  const key = item ? keyOf(item) : null;
  if (key !== hovered) { hovered = key; refreshHighlight(); }
  if (item) tellItem(event, item);
  else if (over) tellEdge(event, over.edge);
  else tip.hidden = true;
});
svg.addEventListener("pointerleave", () => {
  tip.hidden = true;
  if (hovered !== null) { hovered = null; refreshHighlight(); }
});

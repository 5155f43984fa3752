// What is in the picture: the embedded document, who is next to whom, and which groups are collapsed.
const data = JSON.parse(document.getElementById("data").textContent);
const nodes = data.nodes;
const byName = new Map(nodes.map((node, at) => [node.name, at]));
const groupBoxes = new Map(data.groups.map((group) => [group.name, group.box]));
const members = new Map(data.groups.map((group) => [group.name, []]));
nodes.forEach((node, at) => members.get(node.group).push(at));
const collapsed = new Set();
const STATUSES = ["ACTIVE", "DEGRADED", "STALE", "unknown"];

const upstream = nodes.map(() => []);
const downstream = nodes.map(() => []);
for (const edge of data.edges) {
  if (edge.from === edge.to) continue;
  upstream[edge.to].push(edge);
  downstream[edge.from].push(edge);
}

// Everything that can be reached from some nodes, themselves left out.
function reach(starts, edges, end) {
  const seen = new Set();
  const stack = [...starts];
  while (stack.length) {
    for (const edge of edges[stack.pop()]) {
      if (!seen.has(edge[end])) { seen.add(edge[end]); stack.push(edge[end]); }
    }
  }
  starts.forEach((one) => seen.delete(one));
  return seen;
}

function worst(numbers) {
  const rank = { unknown: 0, ACTIVE: 1, DEGRADED: 2, STALE: 3 };
  return numbers.reduce((found, at) => (rank[nodes[at].status] > rank[found] ? nodes[at].status : found), "unknown");
}

// A collapsed group stands where its middle member stood, so that nothing else has to move.
function standIn(group) {
  const inside = members.get(group).map((at) => nodes[at].box);
  const x = inside.reduce((sum, box) => sum + box[0], 0) / inside.length;
  const y = inside.reduce((sum, box) => sum + box[1], 0) / inside.length;
  return inside.reduce((best, box) => (Math.hypot(box[0] - x, box[1] - y) < Math.hypot(best[0] - x, best[1] - y) ? box : best));
}

// What is drawn now: items (nodes and collapsed groups) and edges between them.
function visible() {
  const overview = collapsed.size === members.size;
  const items = [];
  const itemOf = new Array(nodes.length);
  for (const [group, inside] of members) {
    if (collapsed.has(group)) {
      const item = { group, members: inside, box: overview ? groupBoxes.get(group) : standIn(group), status: worst(inside) };
      inside.forEach((at) => { itemOf[at] = item; });
      items.push(item);
    }
  }
  nodes.forEach((node, at) => {
    if (itemOf[at]) return;
    itemOf[at] = { at, node, members: [at], box: node.box, status: node.status };
    items.push(itemOf[at]);
  });
  const merged = new Map();
  for (const edge of data.edges) {
    const from = itemOf[edge.from];
    const to = itemOf[edge.to];
    if (from === to && (from.group || edge.from !== edge.to)) continue;
    if (!from.group && !to.group) { merged.set(edge, { from, to, kind: edge.kind, width: edge.width, rows: edge.rows, basis: edge.basis, route: edge.route, count: 1 }); continue; }
    const key = `${items.indexOf(from)} ${items.indexOf(to)} ${edge.kind}`;
    const known = merged.get(key);
    if (known) {
      known.count += 1;
      known.rows = edge.rows === null ? known.rows : (known.rows || 0) + edge.rows;
      known.width = Math.max(known.width, edge.width);
    } else {
      merged.set(key, { from, to, kind: edge.kind, width: edge.width, rows: edge.rows, basis: "", route: between(from.box, to.box, edge.kind), count: 1 });
    }
  }
  return { items, edges: [...merged.values()], overview, itemOf };
}

const PORTS = { trigger: -8, writes: 8, lookup: 17, feeds: 0, after: -17 }; // kinds side by side

function between(source, dest, kind) {
  const backward = dest[0] + dest[2] < source[0];
  const side = (box, right) => [box[0] + (right ? box[2] : 0), box[1] + box[3] / 2 + PORTS[kind]];
  return [side(source, !backward), side(dest, backward)];
}

function format(number) {
  return number === null || number === undefined ? "" : number.toLocaleString("en-US");
}

function bytes(number) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  let value = number;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${at ? value.toFixed(1) : value} ${units[at]}`;
}

// Elements with text, never with markup: names and DDL come from anywhere.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

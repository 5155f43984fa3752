// Items and edges as SVG. Shapes tell kinds, colours tell statuses, lines tell how data gets from one to the other.
const svg = document.getElementById("graph");
const world = document.getElementById("world");
let scene = null;

function outline(shape, w, h) {
  const r = h / 2;
  if (shape === "source") return `M0 0H${w - 16}L${w} ${r}L${w - 16} ${h}H0Z`;
  if (shape === "view" || shape === "refreshable") return `M${r} 0H${w - r}A${r} ${r} 0 0 1 ${w - r} ${h}H${r}A${r} ${r} 0 0 1 ${r} 0Z`;
  if (shape === "lookup") return `M14 0H${w - 14}L${w} ${r}L${w - 14} ${h}H14L0 ${r}Z`;
  if (shape === "target") return `M0 5C0 -2 ${w} -2 ${w} 5V${h - 5}C${w} ${h + 2} 0 ${h + 2} 0 ${h - 5}Z`;
  if (shape === "plain") return `M0 0H${w - 12}L${w} 12V${h}H0Z`;
  return `M6 0H${w - 6}Q${w} 0 ${w} 6V${h - 6}Q${w} ${h} ${w - 6} ${h}H6Q0 ${h} 0 ${h - 6}V6Q0 0 6 0Z`;
}

function fold(shape, w, h) {
  if (shape === "target") return `M0 5C0 12 ${w} 12 ${w} 5`;
  if (shape === "plain") return `M${w - 12} 0V12H${w}`;
  if (shape === "refreshable") return `M${h / 2} 4H${w - h / 2}A${h / 2 - 4} ${h / 2 - 4} 0 0 1 ${w - h / 2} ${h - 4}H${h / 2}A${h / 2 - 4} ${h / 2 - 4} 0 0 1 ${h / 2} 4Z`;
  if (shape === "group") return `M5 -4H${w - 5}M10 -8H${w - 10}`;
  return "";
}

const SIGNS = { ACTIVE: "", DEGRADED: "!", STALE: "×", unknown: "?" };

function drawItem(item) {
  const [x, y, w, h] = item.box;
  const shape = item.group ? "group" : item.node.shape;
  const name = item.group ? `group ${item.group}` : item.node.name;
  const detail = item.group ? `${item.members.length} objects` : item.node.detail;
  const drawn = makeSvg("g", {
    class: `node ${item.status} ${shape}`, transform: `translate(${x} ${y})`, tabindex: "0", role: "button",
    "aria-label": `${name}, ${item.group ? detail : item.node.kind}, ${item.status}`,
  });
  drawn.append(makeSvg("path", { class: "body", d: outline(shape, w, h) }));
  const line = fold(shape, w, h);
  if (line) drawn.append(makeSvg("path", { class: "fold", d: line }));
  const middle = h / 2 + (shape === "target" ? 3 : 0);
  drawn.append(makeSvg("circle", { class: "badge", cx: 20, cy: middle, r: 6.5 }));
  const texts = [["sign", 20, middle + 3.6, SIGNS[item.status]], ["label", 33, middle - 2, item.group || item.node.label], ["detail", 33, middle + 12, detail]];
  for (const [kind, tx, ty, text] of texts) {
    const element = makeSvg("text", { class: kind, x: tx, y: ty });
    element.textContent = text;
    drawn.append(element);
  }
  item.element = drawn;
  drawn.item = item;
  return drawn;
}

const INSETS = { source: 15, view: 6, refreshable: 6, lookup: 10 }; // a line begins below its node where the side is slanted or round

// A smooth line through the ports and the gaps that it passes; it ends before the arrow. `leaving` and `entering` say which way it goes there: 1 is to the right.
function line(points, leaving, entering, back, inset) {
  const ends = points.map((point) => [...point]);
  ends[ends.length - 1][0] -= entering * back;
  let path = `M${ends[0][0] - leaving * inset} ${ends[0][1]}L${ends[0][0]} ${ends[0][1]}`;
  for (let at = 0; at + 1 < ends.length; at += 2) {
    const [ax, ay] = ends[at];
    const [bx, by] = ends[at + 1];
    const bend = Math.max(24, Math.abs(bx - ax) / 2);
    const onward = bx >= ax ? 1 : -1;
    const first = at === 0 ? leaving : onward;
    const last = at + 2 < ends.length ? onward : entering;
    path += `C${ax + first * bend} ${ay} ${bx - last * bend} ${by} ${bx} ${by}`;
    if (at + 2 < ends.length) path += `L${ends[at + 2][0]} ${ends[at + 2][1]}`;
  }
  return path;
}

function head(kind, x, y, size, way) {
  const s = size * way;
  const half = size * 0.55;
  if (kind === "lookup") return `M${x - s} ${y - half}L${x} ${y}L${x - s} ${y + half}Z`;
  if (kind === "feeds") return `M${x - s} ${y - half}L${x} ${y}L${x - s} ${y + half}`;
  if (kind === "after") return `M${x - s} ${y}L${x - s / 2} ${y - half}L${x} ${y}L${x - s / 2} ${y + half}Z`;
  return `M${x - s} ${y - half}L${x} ${y}L${x - s} ${y + half}L${x - s * 0.7} ${y}Z`;
}

function drawEdge(edge) {
  const points = edge.route;
  const [x, y] = points[points.length - 1];
  const middle = (item) => item.box[0] + item.box[2] / 2;
  const leaving = points[0][0] >= middle(edge.from) ? 1 : -1;
  const entering = x <= middle(edge.to) ? 1 : -1;
  const size = 7 + edge.width * 1.3;
  const inset = INSETS[edge.from.group ? "group" : edge.from.node.shape] || 0;
  const path = line(points, leaving, entering, size * 0.7, inset);
  const drawn = makeSvg("g", { class: `edge ${edge.kind}` },
    makeSvg("path", { class: "hit", d: path }),
    makeSvg("path", { class: "line", d: path, "stroke-width": edge.width }),
    makeSvg("path", { class: "head", d: head(edge.kind, x, y, size, entering) }));
  edge.element = drawn;
  drawn.edge = edge;
  return drawn;
}

function drawFrame(frame) {
  const [x, y, w, h] = frame.box;
  const title = makeSvg("text", { x: x + 22, y: y + 34, "font-size": 22 });
  const drawn = makeSvg("g", { class: "frame" }, makeSvg("rect", { x, y, width: w, height: h, rx: 14 }), title);
  title.frame = frame;
  return drawn;
}

// As much of a title as fits over its frame.
function frameTitle(frame, size) {
  const whole = `${frame.group} · ${frame.own} objects${frame.others ? ` and ${frame.others} of other groups` : ""}`;
  return [whole, `${frame.group} · ${frame.own}`].find((text) => text.length * size * 0.62 < frame.box[2] - 22) || frame.group;
}

function draw() {
  scene = visible();
  world.replaceChildren();
  if (!scene.overview) data.frames.forEach((frame) => world.append(drawFrame(frame)));
  scene.edges.slice().sort((a, b) => b.width - a.width).forEach((edge) => world.append(drawEdge(edge)));
  scene.items.forEach((item) => world.append(drawItem(item)));
  refreshHighlight();
  drawMap();
}

function extent() {
  const boxes = scene.items.map((item) => item.box);
  if (!boxes.length) return [0, 0, 1, 1];
  if (!scene.overview) data.frames.forEach((frame) => boxes.push(frame.box));
  const left = Math.min(...boxes.map((box) => box[0]));
  const top = Math.min(...boxes.map((box) => box[1]));
  return [left, top, Math.max(...boxes.map((box) => box[0] + box[2])) - left, Math.max(...boxes.map((box) => box[1] + box[3])) - top];
}

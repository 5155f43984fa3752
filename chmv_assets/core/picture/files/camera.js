// Pan and zoom: mouse, wheel, fingers, keys, buttons. `camera` says which world point is at the corner of the stage, and how large.
const camera = { x: 0, y: 0, scale: 1 };
const NEAREST = 3;
const FURTHEST = 0.02;
const FAR = 0.62; // below: no second line in nodes
const FURTHER = 0.4; // below: no labels
const still = matchMedia("(prefers-reduced-motion: reduce)");
let flight = 0;

function applyCamera() {
  world.setAttribute("transform", `matrix(${camera.scale} 0 0 ${camera.scale} ${-camera.x * camera.scale} ${-camera.y * camera.scale})`);
  svg.classList.toggle("far", camera.scale < FAR);
  svg.classList.toggle("further", camera.scale < FURTHER);
  const size = Math.min(120, Math.max(22, 15 / camera.scale)); // titles of frames stay readable
  for (const title of world.querySelectorAll(".frame text")) {
    title.setAttribute("font-size", size);
    title.textContent = frameTitle(title.frame, size);
    title.setAttribute("y", title.frame.box[1] + (size > 36 ? -size * 0.3 : 34));
  }
  svg.dataset.scale = camera.scale.toFixed(4);
  drawMap();
}

function stageSize() {
  return [svg.clientWidth || 1, svg.clientHeight || 1];
}

function zoom(factor, atX, atY) {
  cancelAnimationFrame(flight);
  const [width, height] = stageSize();
  const px = atX === undefined ? width / 2 : atX;
  const py = atY === undefined ? height / 2 : atY;
  const scale = Math.min(NEAREST, Math.max(FURTHEST, camera.scale * factor));
  camera.x += px / camera.scale - px / scale;
  camera.y += py / camera.scale - py / scale;
  camera.scale = scale;
  applyCamera();
}

function pan(dx, dy) {
  cancelAnimationFrame(flight);
  camera.x -= dx / camera.scale;
  camera.y -= dy / camera.scale;
  applyCamera();
}

function fly(to, slowly) {
  cancelAnimationFrame(flight);
  if (!slowly || still.matches) { Object.assign(camera, to); applyCamera(); return; }
  const from = { ...camera };
  const began = performance.now();
  const [width, height] = stageSize();
  const step = (now) => {
    const part = Math.min(1, (now - began) / 280);
    const eased = 1 - (1 - part) ** 3;
    const scale = from.scale * (to.scale / from.scale) ** eased;
    const centre = (one, side, size) => one[side] + size / 2 / one.scale;
    camera.scale = scale;
    camera.x = centre(from, "x", width) * (1 - eased) + centre(to, "x", width) * eased - width / 2 / scale;
    camera.y = centre(from, "y", height) * (1 - eased) + centre(to, "y", height) * eased - height / 2 / scale;
    applyCamera();
    if (part < 1) flight = requestAnimationFrame(step);
  };
  flight = requestAnimationFrame(step);
}

// Everything in view; the legend covers the lower left corner, so a small graph keeps above it.
function fit(slowly) {
  const [left, top, w, h] = extent();
  const [width, height] = stageSize();
  const legend = document.getElementById("legend");
  const below = nodes.length <= 60 ? Math.min(legend.offsetHeight, height / 3) : 0;
  const margin = 28;
  const scale = Math.max(FURTHEST, Math.min(1.25, (width - 2 * margin) / w, (height - 2 * margin - below) / h));
  fly({ scale, x: left + w / 2 - width / 2 / scale, y: top + h / 2 - (height - below) / 2 / scale }, slowly);
}

function centreOn(box, slowly) {
  const [width, height] = stageSize();
  const scale = Math.max(camera.scale, 0.9);
  fly({ scale, x: box[0] + box[2] / 2 - width / 2 / scale, y: box[1] + box[3] / 2 - height / 2 / scale }, slowly);
}

// Move just as far as needed for a box to be seen: the panel takes its share of the stage.
function bringIn(box) {
  const [width, height] = stageSize();
  const inside = (from, size, room) => Math.min(0, from - 24) || Math.max(0, Math.min(from - 24, from + size + 24 - room));
  const dx = inside((box[0] - camera.x) * camera.scale, box[2] * camera.scale, width);
  const dy = inside((box[1] - camera.y) * camera.scale, box[3] * camera.scale, height);
  if (dx || dy) fly({ scale: camera.scale, x: camera.x + dx / camera.scale, y: camera.y + dy / camera.scale }, true);
}

const fingers = new Map();
let moved = 0;
svg.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  fingers.set(event.pointerId, [event.clientX, event.clientY]);
  moved = 0;
});
addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const now = [event.clientX, event.clientY];
  if (fingers.size === 2) {
    const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
    const gap = (one) => Math.max(10, Math.hypot(one[0] - other[0], one[1] - other[1]));
    const area = svg.getBoundingClientRect();
    zoom(gap(now) / gap(before), (now[0] + other[0]) / 2 - area.left, (now[1] + other[1]) / 2 - area.top);
  } else {
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (moved > 4) { svg.classList.add("dragging"); pan(now[0] - before[0], now[1] - before[1]); }
  }
  fingers.set(event.pointerId, now);
});
function letGo(event) {
  fingers.delete(event.pointerId);
  svg.classList.remove("dragging");
}
addEventListener("pointerup", letGo);
addEventListener("pointercancel", letGo);
svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const area = svg.getBoundingClientRect();
  if (event.shiftKey) { pan(-event.deltaY, 0); return; }
  const lines = event.deltaMode === 1 ? 18 : 1;
  zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.008 : 0.0016)), event.clientX - area.left, event.clientY - area.top);
}, { passive: false });

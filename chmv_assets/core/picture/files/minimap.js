// A small map of everything, where there is much: what is in view, and a click to go elsewhere.
const map = document.getElementById("map");
const MANY = 40;
let mapped = null;
let waiting = false;

function drawMap() {
  if (!scene || scene.items.length <= MANY) { map.hidden = true; return; }
  if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; paintMap(); }); }
}

function paintMap() {
  const ratio = devicePixelRatio || 1;
  const [left, top, w, h] = extent();
  const wide = 220;
  const high = Math.max(70, Math.min(170, (wide * h) / w));
  map.hidden = false;
  map.width = wide * ratio;
  map.height = high * ratio;
  map.style.width = `${wide}px`;
  map.style.height = `${high}px`;
  const scale = Math.min((wide - 12) / w, (high - 12) / h);
  const dx = (wide - w * scale) / 2 - left * scale;
  const dy = (high - h * scale) / 2 - top * scale;
  mapped = { scale, dx, dy };
  const pen = map.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  pen.scale(ratio, ratio);
  for (const item of scene.items) {
    pen.fillStyle = style.getPropertyValue(`--${item.status.toLowerCase()}`);
    const [x, y, width, height] = item.box;
    pen.fillRect(x * scale + dx, y * scale + dy, Math.max(1.5, width * scale), Math.max(1.5, height * scale));
  }
  const [stageWide, stageHigh] = stageSize();
  pen.strokeStyle = style.getPropertyValue("--accent");
  pen.lineWidth = 1.5;
  pen.strokeRect(camera.x * scale + dx, camera.y * scale + dy, (stageWide / camera.scale) * scale, (stageHigh / camera.scale) * scale);
}

function goThere(event) {
  if (!mapped || !(event.buttons & 1)) return;
  const area = map.getBoundingClientRect();
  const [width, height] = stageSize();
  cancelAnimationFrame(flight);
  camera.x = (event.clientX - area.left - mapped.dx) / mapped.scale - width / 2 / camera.scale;
  camera.y = (event.clientY - area.top - mapped.dy) / mapped.scale - height / 2 / camera.scale;
  applyCamera();
}
map.addEventListener("pointerdown", goThere);
map.addEventListener("pointermove", goThere);

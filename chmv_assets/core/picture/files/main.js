// Clicks, keys, the fragment of the address, and the first picture.
const FOLDED = 1200; // with more nodes the page begins with its groups

document.getElementById("taken").textContent = data.taken
  ? `${nodes.length} objects, ${data.edges.length} edges · status as of ${data.taken}`
  : `${nodes.length} objects, ${data.edges.length} edges · status unknown`;
document.getElementById("larger").addEventListener("click", () => zoom(1.35));
document.getElementById("smaller").addEventListener("click", () => zoom(1 / 1.35));
document.getElementById("fit").addEventListener("click", () => fit(true));

svg.addEventListener("click", (event) => {
  if (moved > 4) return;
  const title = event.target.frame;
  const over = event.target.closest(".node");
  if (over) choose(keyOf(over.item));
  else if (title) { setCollapsed(title.group, true); choose(title.group); }
  else if (!event.target.closest(".edge")) choose(null);
});
svg.addEventListener("dblclick", (event) => {
  const over = event.target.closest(".node");
  const area = svg.getBoundingClientRect();
  if (over && over.item.group) { const { group } = over.item; setCollapsed(group, false); choose(null); if (!data.frames.length) fit(true); }
  else if (over) centreOn(over.item.box, true);
  else zoom(1.8, event.clientX - area.left, event.clientY - area.top);
});

const KEYS = {
  "+": () => zoom(1.35), "=": () => zoom(1.35), "-": () => zoom(1 / 1.35), 0: () => fit(true), f: () => fit(true),
  ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0), ArrowUp: () => pan(0, 80), ArrowDown: () => pan(0, -80),
  "/": () => query.focus(), Escape: () => { if (pressed) press(pressed); else choose(null); },
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, pre")) return;
  const node = event.target.closest(".node");
  if (node && node.item && (event.key === "Enter" || event.key === " ")) { choose(keyOf(node.item)); event.preventDefault(); return; }
  if (event.target.closest("#panel") && event.key.startsWith("Arrow")) return;
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

function follow(atOnce) {
  let wanted = location.hash.slice(1);
  try { wanted = decodeURIComponent(wanted); } catch { /* not encoded: as it is */ }
  if (byName.has(wanted)) choose(byName.get(wanted), { move: true, fromFragment: true, atOnce });
}
addEventListener("hashchange", () => follow(false));
new ResizeObserver(() => { if (scene) applyCamera(); }).observe(svg);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawMap());

if (nodes.length > FOLDED && members.size > 1) for (const group of members.keys()) collapsed.add(group);
draw();
showLegend();
fit(false);
follow(true);
requestAnimationFrame(() => { document.documentElement.dataset.painted = performance.now().toFixed(0); });

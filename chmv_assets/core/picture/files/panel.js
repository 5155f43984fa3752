// The panel beside the graph: all that is known of one node, or the members of a collapsed group.
const panel = document.getElementById("panel");
const KEYWORDS = /^(create|or|replace|table|materialized|view|dictionary|if|not|exists|to|as|select|from|where|group|order|partition|primary|key|by|engine|settings|ttl|join|left|inner|any|all|on|using|with|union|array|comment|default|refresh|every|source|layout|lifetime|having|limit|distinct|and|in|final|prewhere|case|when|then|else|end|interval|codec|populate|append|depends|definer|sql|security|cluster|alias|ephemeral|index|type|granularity|projection|constraint)$/i;

function choose(key, options) {
  chosen = key;
  hovered = null;
  const node = typeof key === "number" ? nodes[key] : null;
  if (key === null) { panel.hidden = true; panel.replaceChildren(); }
  else if (node) showNode(key, node);
  else showGroup(key);
  refreshHighlight();
  if (options && options.move && node) {
    if (collapsed.has(node.group)) setCollapsed(node.group, false);
    centreOn(node.box, !options.atOnce);
  }
  else if (key !== null && itemOf(key)) bringIn(itemOf(key).box);
  const fragment = node ? `#${encodeURIComponent(node.name)}` : location.pathname + location.search;
  if (!options || !options.fromFragment) history.replaceState(null, "", fragment);
}

function closer() {
  return make("button", { class: "close", title: "Close (Esc)", "aria-label": "Close", onclick: () => choose(null) }, "×");
}

function chip(status) {
  return make("span", { class: `chip ${status}` }, status === "unknown" ? "status unknown" : status);
}

function showNode(at, node) {
  panel.replaceChildren(
    closer(),
    make("h2", { id: "panel-name" }, node.name),
    make("div", {}, chip(node.status), make("span", { class: "chip" }, node.kind), make("span", { class: "chip" }, `group ${node.group}`)),
    node.why.length ? make("ul", { class: "why" }, ...node.why.map((why) => make("li", {}, why))) : "",
    node.description ? make("p", {}, node.description) : "",
    facts(node),
    ...section("Open outages", node.outages.length, () => make("ul", { class: "why" }, ...node.outages.map((text) => make("li", {}, text)))),
    ...section("Watermarks, the last windows", node.watermarks.length, () => table(["window (UTC)", "source", "status", "processed to"], node.watermarks, 0, "short")),
    ...section("Needs", upstream[at].length, () => links(upstream[at], "from")),
    ...section("Is needed by", downstream[at].length, () => links(downstream[at], "to")),
    ...ddl(node),
    ...section(`Columns (${node.columns.length})`, node.columns.length, () => table(["name", "type", "comment"], node.columns, 2)),
  );
  panel.hidden = false;
  panel.scrollTop = 0;
}

function facts(node) {
  const rows = node.rows === null ? "" : `${format(node.rows)}${node.bytes === null ? "" : `, ${bytes(node.bytes)}`}`;
  const impact = `${reach([byName.get(node.name)], upstream, "from").size} upstream, ${reach([byName.get(node.name)], downstream, "to").size} downstream`;
  const known = [
    ["Engine", node.engine], ["Role", node.role === "other" ? "" : node.role], ["Class", node.class], ["Refresh", node.refresh],
    ["Partitions", node.cadence], ...node.keys, ["Rows", rows], ["Readers on", node.route], ["Last repair", node.repair],
    ["Last rebuild", node.rebuild], ["Owners", node.owners.join(", ")], ["Declared", node.place], ["Impact", impact],
  ].filter(([, value]) => value);
  return make("dl", {}, ...known.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function section(title, there, body, ...more) {
  return there ? [make("h3", {}, title, ...more), body()] : [];
}

function table(titles, rows, codes, look) {
  const columns = titles.map((_, at) => at).filter((at) => rows.some((row) => row[at]));
  return make("table", { class: look },
    make("tr", {}, ...columns.map((at) => make("th", {}, titles[at]))),
    ...rows.map((row) => make("tr", {}, ...columns.map((at) => make("td", { class: at < (codes || 0) ? "code" : null }, row[at])))));
}

function links(edges, end) {
  return make("ul", { class: "links" }, ...edges.map((edge) => {
    const node = nodes[edge[end]];
    return make("li", {}, make("span", { class: `dot ${node.status}` }),
      make("button", { onclick: () => choose(edge[end], { move: true }) }, node.name),
      make("small", {}, ` ${edge.kind}${edge.rows === null ? "" : `, ${format(edge.rows)} rows`}`));
  }));
}

function ddl(node) {
  if (!node.ddl) return [];
  const text = make("pre", { id: "ddl", tabindex: "0" }, ...coloured(node.ddl));
  const copy = make("button", { onclick: () => copyText(node.ddl, text, copy) }, "Copy");
  return section("DDL", true, () => text, copy);
}

function coloured(sql) {
  const pieces = sql.match(/--[^\n]*|\/\*[^]*?\*\/|'(?:[^'\\]|\\[^]|'')*'|`(?:[^`\\]|\\[^])*`|[A-Za-z_]\w*|[^A-Za-z_'`/-]+|[^]/g) || [];
  return pieces.map((piece) => {
    const kind = piece.startsWith("--") || piece.startsWith("/*") ? "remark" : piece.startsWith("'") ? "text" : KEYWORDS.test(piece) ? "word" : "";
    return kind ? make("span", { class: kind }, piece) : piece;
  });
}

function copyText(text, element, button) {
  const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1200); };
  const select = () => { getSelection().selectAllChildren(element); if (document.execCommand("copy")) done(); };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select);
  else select();
}

function showGroup(group) {
  const inside = members.get(group);
  panel.replaceChildren(
    closer(),
    make("h2", { id: "panel-name" }, `group ${group}`),
    make("div", {}, ...STATUSES.map((status) => {
      const count = inside.filter((at) => nodes[at].status === status).length;
      return count ? make("span", { class: `chip ${status}` }, `${count} ${status}`) : "";
    })),
    make("p", {}, make("button", { onclick: () => { setCollapsed(group, false); choose(null); fit(true); } }, "Expand")),
    make("ul", { class: "links" }, ...inside.map((at) => make("li", {}, make("span", { class: `dot ${nodes[at].status}` }),
      make("button", { onclick: () => choose(at, { move: true }) }, nodes[at].name), make("small", {}, ` ${nodes[at].kind}`)))),
  );
  panel.hidden = false;
}

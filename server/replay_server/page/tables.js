// The tables: a card each while they are few; from eight on rows of one table, which opens a card. Nodes stay when they are told
// anew, so that focus and open details do. The address keeps what was chosen.
import {again, draw, drawRates} from "./charts.js";
import {age, byId, facts, inOrder, make, many, percent, say, setBar, share, short, tiles, whole} from "./text.js";

const MANY = 8, AT_ONCE = 100;

function tree(signature) {
  const root = new Map();
  for (const [path, leaf] of Object.entries(signature)) {
    let node = root;
    const parts = path.split("/");
    for (const part of parts.slice(0, -1)) {
      if (!(node.get(part) instanceof Map)) node.set(part, new Map());
      node = node.get(part);
    }
    node.set(parts[parts.length - 1], leaf);
  }
  const list = node => make("ul", {class: "tree"}, ...[...node].map(([name, value]) =>
    value instanceof Map ? make("li", {}, `${name}/`, list(value)) : make("li", {}, name ? `${name}  ${value}` : value)));
  return list(root);
}
const last = values => values.length ? values[values.length - 1] : 0;
const ratio = one => one.inserts ? one.samples / one.inserts : null;
const ratioText = one => ratio(one) === null ? "–" : short.format(ratio(one));
export function lastInsert(at, now, inserts) {
  if (at !== null) return `${age(now - at)} ago`;
  return inserts ? "before start" : "none yet";
}

// A word, its colour, and a line. A table without items, or with fewer than sampling needs, is no trouble.
export function stateOf({size, limiter}) {
  const {inserts_blocked: insert, samples_blocked: sample, min_size: least} = limiter;
  const from = least > 1 ? `, sampling from ${whole.format(least)} items on` : "";
  if (insert && sample) return ["blocked", "bad", "Sampling blocked, inserting blocked"];
  if (insert) return ["blocked", "warn", "Sampling OK, inserting blocked"];
  if (sample && !size) return ["empty", "soft", `Empty${from}`];
  if (sample && size < least) return ["filling", "soft", `Filling${from}`];
  if (sample) return ["blocked", "warn", "Sampling blocked, inserting OK"];
  return ["OK", "good", "Sampling OK, inserting OK"];
}
// "sampling waits for 3 more inserts: 4.55 samples per insert, limit 4"
function reasons({limiter}) {
  const both = [[limiter.samples_waiting, limiter.samples_reason], [limiter.inserts_waiting, limiter.inserts_reason]];
  return both.filter(one => one[0]).map(([waits, why]) => `${waits}: ${why}`).join("; ");
}

class Card {
  constructor(name, id) {
    this.fill = make("div");
    this.bar = make("div", {class: "bar", role: "meter", "aria-label": "fill", "aria-valuemin": 0}, this.fill);
    this.items = make("span");
    this.percent = make("span", {class: "soft"});
    this.state = make("p", {class: "state"});
    this.why = make("p", {class: "why"});
    this.tiles = make("dl", {class: "tiles"});
    this.done = make("div");
    this.line = make("i");
    this.target = make("span");
    this.wanted = make("span", {class: "wanted"}, make("span", {class: "gauge", "aria-hidden": "true"}, this.done, this.line), this.target);
    this.plot = make("svg:svg", {role: "img", tabindex: 0});
    this.list = make("dl");
    this.tag = make("div");
    this.signature = undefined;
    this.node = make("article", {...(id ? {id} : {}), "data-table": name}, make("h2", {}, name), this.state, this.why, this.bar,
      make("div", {class: "row"}, this.items, this.percent), this.tiles, this.plot,
      make("div", {class: "keys"}, make("span", {}, make("span", {class: "key"}), "inserts/s"),
        make("span", {}, make("span", {class: "key dashed"}), "samples/s")),
      make("details", {}, make("summary", {}, "Configuration and totals"), this.list), this.tag);
  }
  tell(one, now) {
    const full = share(one.size, one.max_size), [word, kind, words] = stateOf(one), {limiter} = one, target = limiter.samples_per_insert;
    this.bar.setAttribute("aria-valuemax", one.max_size);
    this.bar.setAttribute("aria-valuenow", one.size);
    setBar(this.fill, full);
    say(this.items, `${whole.format(one.size)} of ${whole.format(one.max_size)} items`);
    say(this.percent, percent(full));
    say(this.state, words, `state ${kind}`);
    const why = word === "blocked" ? reasons(one) : "";
    this.why.hidden = !why;
    say(this.why, why);
    if (target !== null) {  // the line stands in the middle: left of it too few samples, right of it too many
      setBar(this.done, Math.min(1, (ratio(one) ?? 0) / (2 * target)));
      say(this.target, `target ${short.format(target)}`);
    }
    tiles(this.tiles, [
      ["inserts/s", short.format(last(one.rates.inserts))],
      ["samples/s", short.format(last(one.rates.samples))],
      ["samples per insert", ratioText(one), target === null ? "any" : this.wanted],
      ["last insert", lastInsert(one.last_insert_at, now, one.inserts)],
    ]);
    facts(this.list, [
      ["sampling", limiter.samples],
      ["inserting", limiter.inserts],
      ["prefill", limiter.prefilling ? "filling; restart the server when it is full, and the configured limiter holds" : "", "warn"],
      ["sampler, remover", `${one.sampler}, ${one.remover}`],
      ["samples per item", one.max_times_sampled > 0 ? `at most ${whole.format(one.max_times_sampled)}` : "no limit"],
      ["totals", `${whole.format(one.inserts)} inserts, ${whole.format(one.samples)} samples of ${whole.format(one.unique_samples)} items`],
      ["episodes", whole.format(one.episodes)],
      ["restored", one.restored ? `${whole.format(one.restored)} items at the start` : ""],
    ]);
    this.describe(one.signature);
    this.rates = one.rates;
  }
  draw() {
    draw(this.plot, svg => drawRates(svg, this.rates));
  }
  describe(signature) {
    const written = JSON.stringify(signature);
    if (written === this.signature) return;
    this.signature = written;
    this.tag.replaceChildren(signature === null ? make("p", {class: "soft"}, "No signature: the table takes anything.")
      : make("details", {}, make("summary", {}, `Signature, ${Object.keys(signature).length} columns`), tree(signature)));
  }
}

// Puts nodes in this order and takes others out. One that is moved would lose the focus.
function arrange(parent, nodes) {
  const keep = new Set(nodes), focused = document.activeElement;
  for (const node of [...parent.children]) if (!keep.has(node)) node.remove();
  let place = parent.firstChild;
  for (const node of nodes) {
    if (node === place) place = place.nextSibling; else parent.insertBefore(node, place);
  }
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({preventScroll: true});
}

const SEVERITY = {blocked: 0, filling: 1, empty: 2, OK: 3};
const COLUMNS = [  // name, heading, what it is sorted by; the greatest first where a number is meant
  ["name", "table", null],
  ["state", "state", one => SEVERITY[stateOf(one)[0]]],
  ["items", "items", one => -share(one.size, one.max_size)],
  ["inserts", "inserts/s", one => -last(one.rates.inserts)],
  ["samples", "samples/s", one => -last(one.rates.samples)],
  ["ratio", "samples per insert", one => -(ratio(one) ?? -1)],
  ["last", "last insert", one => -(one.last_insert_at ?? 0)],
];
const chosen = {find: "", state: "", sort: "name", table: ""};
let limit = AT_ONCE, newest = [], now = 0;
const cards = new Map(), rows = new Map();

class Row {
  constructor(name) {
    this.button = make("button", {type: "button", class: "plain", "aria-expanded": "false"}, name);
    this.fill = make("div");
    this.items = make("span");
    this.cells = COLUMNS.slice(1).map(([column]) => make("td", {class: `of-${column}`}));
    this.cells[1].append(make("div", {class: "bar", "aria-hidden": "true"}, this.fill), this.items);
    this.node = make("tr", {"data-table": name}, make("th", {scope: "row"}, this.button), ...this.cells);
    this.node.addEventListener("click", event => {
      if (!event.target.closest("a, details, svg") && !getSelection().toString()) choose({table: chosen.table === name ? "" : name});
    });
  }
  tell(one) {
    const [word, kind] = stateOf(one), full = share(one.size, one.max_size), [state, , inserts, samples, perInsert, at] = this.cells;
    say(state, word, `of-state state ${kind}`);
    setBar(this.fill, full);
    say(this.items, `${whole.format(one.size)} of ${whole.format(one.max_size)}`);
    say(inserts, short.format(last(one.rates.inserts)));
    say(samples, short.format(last(one.rates.samples)));
    say(perInsert, ratioText(one) + (one.limiter.samples_per_insert === null ? "" : ` of ${short.format(one.limiter.samples_per_insert)}`));
    say(at, lastInsert(one.last_insert_at, now, one.inserts));
  }
}
const detail = make("tr", {class: "detail"}, make("td", {colspan: COLUMNS.length}));

function headings() {
  const [column, down] = sorting();
  const row = byId("all-tables").tHead.rows[0];
  if (!row.childElementCount) row.append(...COLUMNS.map(([name, heading]) => {
    const button = make("button", {type: "button", class: "plain"}, heading);
    button.addEventListener("click", () => choose({sort: chosen.sort === name ? `-${name}` : name}));
    return make("th", {scope: "col", class: `of-${name}`}, button);
  }));
  COLUMNS.forEach(([name, , key], i) => {  // numbers begin with the greatest: descending
    const cell = row.cells[i], order = (key !== null && name !== "state") !== down ? "descending" : "ascending";
    if (name === column) cell.setAttribute("aria-sort", order); else cell.removeAttribute("aria-sort");
  });
}
function sorting() {
  const down = chosen.sort.startsWith("-"), name = down ? chosen.sort.slice(1) : chosen.sort;
  return COLUMNS.some(one => one[0] === name) ? [name, down] : ["name", false];
}
function wanted() {
  const find = chosen.find.toLowerCase(), [column, down] = sorting(), key = COLUMNS.find(one => one[0] === column)[2], sign = down ? -1 : 1;
  return newest.filter(one => one.name.toLowerCase().includes(find) && (!chosen.state || stateOf(one)[0] === chosen.state))
    .sort((a, b) => sign * (key ? key(a) - key(b) : inOrder(a.name, b.name)) || inOrder(a.name, b.name));
}
function tell(cache, one, Kind, ...more) {
  if (!cache.has(one.name)) cache.set(one.name, new Kind(one.name, ...more));
  const made = cache.get(one.name);
  made.tell(one, now);
  return made;
}
function showRows() {
  const found = wanted(), some = found.slice(0, limit);
  headings();
  byId("more").hidden = found.length <= limit;
  say(byId("more"), `Show more: ${whole.format(found.length - some.length)} are not shown`);
  say(byId("counted"), found.length === newest.length ? many(newest.length, "table") : `${whole.format(found.length)} of ${many(newest.length, "table")}`);
  const opened = newest.find(one => one.name === chosen.table);
  if (opened && !some.includes(opened)) some.unshift(opened);  // the one that is open is never filtered away
  const nodes = [];
  for (const name of [...cards.keys()]) if (name !== opened?.name) cards.delete(name);
  for (const one of some) {
    const row = tell(rows, one, Row), isOpen = one === opened;
    row.button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) row.button.setAttribute("aria-controls", "opened"); else row.button.removeAttribute("aria-controls");
    row.node.classList.toggle("open", isOpen);
    nodes.push(row.node);
    if (!isOpen) continue;
    const card = tell(cards, one, Card, "opened");
    if (detail.firstChild.firstChild !== card.node) detail.firstChild.replaceChildren(card.node);
    nodes.push(detail);
  }
  const names = new Set(some.map(one => one.name));
  for (const name of [...rows.keys()]) if (!names.has(name)) rows.delete(name);
  arrange(byId("all-tables").tBodies[0], nodes);
}
function show() {
  const isMany = newest.length >= MANY;
  if (document.body.classList.contains("many") !== isMany) {
    document.body.classList.toggle("many", isMany);
    if (isMany) byId("overview").after(byId("list")); else byId("tables").after(byId("list"));  // first how the server is, then its many tables
    if (isMany && matchMedia("(max-width: 48rem)").matches) byId("curves").open = false;  // a way of some screens to the tables
    cards.clear();
    again();
  }
  byId("list").hidden = !isMany;
  byId("tables").hidden = isMany;
  if (isMany) showRows();
  else {
    for (const name of [...cards.keys()]) if (!newest.some(one => one.name === name)) cards.delete(name);
    arrange(byId("tables"), [...newest].sort((a, b) => inOrder(a.name, b.name)).map(one => tell(cards, one, Card, "").node));
  }
  for (const card of cards.values()) card.draw();
}
function read() {
  const given = new URLSearchParams(location.search);
  for (const name of Object.keys(chosen)) chosen[name] = given.get(name) ?? (name === "sort" ? "name" : "");
  byId("wanted").value = chosen.find;
  byId("state-wanted").value = chosen.state;
  chosen.state = byId("state-wanted").value;
}
function choose(changes) {
  Object.assign(chosen, changes);
  show();
  const given = new URLSearchParams(Object.entries(chosen).filter(([name, value]) => value && !(name === "sort" && value === "name")));
  history.replaceState(null, "", `${location.pathname}${String(given) && `?${given}`}${location.hash}`);
}
export function showTables(tables, time) {
  [newest, now] = [tables, time];
  show();
}
byId("choose").addEventListener("submit", event => event.preventDefault());
byId("choose").addEventListener("input", () => { limit = AT_ONCE; choose({find: byId("wanted").value, state: byId("state-wanted").value}); });
byId("more").addEventListener("click", () => { limit += AT_ONCE; show(); });
read();

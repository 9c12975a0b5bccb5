// One card per table. Cards stay when they are told anew, so that focus and open details do; of many tables some are shown.
import {draw, drawRates} from "./charts.js";
import {byId, facts, make, say, short, whole} from "./text.js";

const AT_ONCE = 24, FEW = 12;
const cards = new Map();
let shown = AT_ONCE, newest = [];

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
class Card {
  constructor(name) {
    this.fill = make("div");
    this.bar = make("div", {class: "bar", role: "meter", "aria-label": "fill", "aria-valuemin": 0}, this.fill);
    this.items = make("span");
    this.percent = make("span", {class: "soft"});
    this.plot = make("svg:svg", {role: "img", "aria-label": "inserts and samples per second over the last minutes"});
    this.inserts = make("span");
    this.samples = make("span");
    this.list = make("dl");
    this.tag = make("div");
    this.signature = undefined;
    this.node = make("article", {"data-table": name}, make("h2", {}, name), this.bar,
      make("div", {class: "row"}, this.items, this.percent), this.plot,
      make("div", {class: "row soft"}, make("span", {}, make("span", {class: "key"}), this.inserts),
        make("span", {}, make("span", {class: "key dashed"}), this.samples)),
      this.list, this.tag);
  }
  tell(one) {
    const share = one.max_size ? one.size / one.max_size : 0;
    this.bar.setAttribute("aria-valuemax", one.max_size);
    this.bar.setAttribute("aria-valuenow", one.size);
    this.fill.style.width = `${(100 * Math.min(1, share)).toFixed(2)}%`;
    this.fill.style.minWidth = one.size ? "2px" : "0";
    say(this.items, `${whole.format(one.size)} of ${whole.format(one.max_size)} items`);
    say(this.percent, `${share > 0 && share < .001 ? "<0.1" : (100 * share).toFixed(1)} %`);
    say(this.inserts, `${short.format(last(one.rates.inserts))} inserts/s`);
    say(this.samples, `${short.format(last(one.rates.samples))} samples/s`);
    facts(this.list, [
      ["sampling", one.limiter.samples, one.limiter.samples_blocked ? "warn" : ""],
      ["inserting", one.limiter.inserts, one.limiter.inserts_blocked ? "warn" : ""],
      ["prefill", one.limiter.prefilling ? "filling; restart the server when it is full, and the configured limiter holds" : "", "warn"],
      ["sampler, remover", `${one.sampler}, ${one.remover}`],
      ["samples per item", one.max_times_sampled > 0 ? `at most ${whole.format(one.max_times_sampled)}` : "no limit"],
      ["totals", `${whole.format(one.inserts)} inserts, ${whole.format(one.samples)} samples of ${whole.format(one.unique_samples)} items`],
      ["episodes", whole.format(one.episodes)],
      ["restored", one.restored ? `${whole.format(one.restored)} items at the start` : ""],
    ]);
    this.describe(one.signature);
    this.rates = one.rates;
  }
  describe(signature) {
    const written = JSON.stringify(signature);
    if (written === this.signature) return;
    this.signature = written;
    this.tag.replaceChildren(signature === null ? make("p", {class: "soft"}, "No signature: the table takes anything.")
      : make("details", {}, make("summary", {}, `Signature, ${Object.keys(signature).length} columns`), tree(signature)));
  }
}
const last = values => values.length ? values[values.length - 1] : 0;
const ORDERS = {
  name: () => 0,
  waits: one => -Number(one.limiter.inserts_blocked || one.limiter.samples_blocked),
  fill: one => -(one.max_size ? one.size / one.max_size : 0),
  inserts: one => -last(one.rates.inserts),
  samples: one => -last(one.rates.samples),
};
function arrange() {
  const wanted = byId("wanted").value.toLowerCase(), order = ORDERS[byId("order").value];
  const found = newest.filter(one => one.name.toLowerCase().includes(wanted)).sort((a, b) => order(a) - order(b));
  const some = found.slice(0, shown);
  byId("choose").hidden = newest.length <= FEW;
  byId("more").hidden = found.length <= shown;
  say(byId("more"), `Show more: ${whole.format(found.length - some.length)} are not shown`);
  say(byId("counted"), found.length === newest.length ? `${whole.format(newest.length)} tables` : `${whole.format(found.length)} of ${whole.format(newest.length)} tables`);
  const keep = new Set(some.map(one => one.name));
  for (const [name, card] of cards) if (!keep.has(name)) { card.node.remove(); cards.delete(name); }
  let before = null;
  for (const one of some) {
    if (!cards.has(one.name)) cards.set(one.name, new Card(one.name));
    const card = cards.get(one.name);
    card.tell(one);
    const place = before ? before.nextSibling : byId("tables").firstChild;
    if (card.node !== place) byId("tables").insertBefore(card.node, place);  // one that is moved loses focus
    before = card.node;
  }
  for (const card of cards.values()) draw(card.plot, svg => drawRates(svg, card.rates));
}
export function showTables(tables) {
  newest = tables;
  arrange();
}
byId("choose").addEventListener("submit", event => event.preventDefault());
byId("choose").addEventListener("input", () => { shown = AT_ONCE; arrange(); });
byId("more").addEventListener("click", () => { shown += AT_ONCE; arrange(); });

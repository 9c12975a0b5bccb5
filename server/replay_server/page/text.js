// Numbers, times and nodes as the page shows them. Strings become text, never markup.
export const whole = new Intl.NumberFormat("en-US", {maximumFractionDigits: 0});
export const short = new Intl.NumberFormat("en-US", {notation: "compact", maximumSignificantDigits: 3});
export const count = number => (number < 1e7 ? whole : short).format(number);
export const byId = id => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${count >= 100 || !unit ? count.toFixed(0) : count.toPrecision(3)} ${units[unit]}`;
}
export function age(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}
export const took = seconds => `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
export const clock = time => new Date(time * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit"});
export const day = time => new Date(time * 1000).toLocaleString([], {month: "short", day: "numeric", hour: "2-digit", minute: "2-digit"});

// t1, t2, t12; with equal numbers by the text itself.
const collator = new Intl.Collator("en", {numeric: true});
export const inOrder = (a, b) => collator.compare(a, b) || (a < b ? -1 : a > b ? 1 : 0);
export const share = (part, all) => all ? Math.min(1, part / all) : 0;
// Rounded down: what is not full does not say 100 %.
export const percent = one => one >= 1 ? "full" : one > 0 && one < .001 ? "<0.1 %" : `${(Math.floor(1000 * one) / 10).toFixed(1)} %`;
export const many = (count, one, more = `${one}s`) => `${whole.format(count)} ${count === 1 ? one : more}`;
export function setBar(fill, one) {  // a bar that is full looks full, and no other one does
  fill.style.width = `${one >= 1 ? 100 : Math.min(99, 100 * one).toFixed(2)}%`;
  fill.style.minWidth = one ? "2px" : "0";
}
// A list of [name, value, kind]; what is "" is left out.
export function facts(list, entries) {
  list.replaceChildren(...entries.filter(entry => entry[1] !== "").flatMap(([name, value, kind]) =>
    [make("dt", {}, name), make("dd", kind ? {class: kind} : {}, String(value))]));
}
// A list of tiles [name, value, what is below it, kind]; nodes stay, so that a reader keeps its place.
export function tiles(list, entries) {
  while (list.childElementCount > entries.length) list.lastElementChild.remove();
  while (list.childElementCount < entries.length) list.append(make("div", {}, make("dt"), make("dd"), make("dd", {class: "soft"})));
  entries.forEach(([name, value, below, kind], i) => {
    const [title, main, sub] = list.children[i].children;
    say(title, name);
    say(main, value, kind ?? "");
    sub.hidden = !below;
    if (below instanceof Node) { if (sub.firstChild !== below) sub.replaceChildren(below); } else say(sub, below ?? "");
  });
}
// Writes a text only when it changed, so that what reads the page aloud says nothing twice.
export function say(node, text, kind) {
  if (node.textContent !== text) node.textContent = text;
  if (kind !== undefined && node.className !== kind) node.className = kind;
}

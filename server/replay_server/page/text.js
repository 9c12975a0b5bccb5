// Numbers, times and nodes as the page shows them. Strings become text, never markup.
export const whole = new Intl.NumberFormat("en-US", {maximumFractionDigits: 0});
export const short = new Intl.NumberFormat("en-US", {notation: "compact", maximumSignificantDigits: 3});
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

// A list of [name, value, kind]; what is "" is left out.
export function facts(list, entries) {
  list.replaceChildren(...entries.filter(entry => entry[1] !== "").flatMap(([name, value, kind]) =>
    [make("dt", {}, name), make("dd", kind ? {class: kind} : {}, String(value))]));
}
// Writes a text only when it changed, so that what reads the page aloud says nothing twice.
export function say(node, text, kind) {
  if (node.textContent !== text) node.textContent = text;
  if (kind !== undefined && node.className !== kind) node.className = kind;
}

// Curves and the time line, as SVG. One unit is one pixel, so that text has its size at any width; the width is known once the
// picture stands on the page. Each is an image with a sentence; hover, or focus and arrow keys, tell the values of one moment below it.
import {probe} from "./probe.js";
import {age, bytes, clock, day, make, short, took, whole} from "./text.js";

const drawn = new Map();
const LEFT = 64, BOTTOM = 24, TOP = 10;
let stopped = null;  // when the server last answered, once it does not

// Draws now, and again whenever the width changes; what left the page is forgotten.
export function draw(svg, paint) {
  drawn.set(svg, paint);
  if (svg.isConnected) paint(svg);
}
export function again() {
  for (const [svg, paint] of drawn) svg.isConnected ? paint(svg) : drawn.delete(svg);
}
window.addEventListener("resize", again);
document.addEventListener("toggle", again, true);  // what was folded had no width

// The time of the last answer when no other comes, else null: then the right end of an axis is not now.
export function stopClock(time) {
  if (stopped === time) return;
  stopped = time;
  again();
}
function nice(most) {  // the least round number that is no smaller
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].find(factor => most <= factor * power * 1.000001) * power;
}
function frame(svg, most, unit, first, last, shares = [0, .5, 1]) {
  const width = Math.max(200, svg.clientWidth), height = svg.clientHeight || 150;
  const y = value => TOP + (height - BOTTOM - TOP) * (1 - value / most);
  const x = time => LEFT + (width - LEFT) * Math.min(1, Math.max(0, (time - first) / Math.max(1, last - first)));
  svg.replaceChildren();
  for (const share of shares) {
    svg.append(make("svg:line", {class: "grid", x1: LEFT, x2: width, y1: y(most * share), y2: y(most * share)}));
    svg.append(make("svg:text", {x: LEFT - 6, y: y(most * share) + 4, "text-anchor": "end"}, unit(most * share)));
  }
  const when = last - first > 43200 ? day : clock;
  svg.append(make("svg:text", {x: LEFT, y: height - 5}, stopped === null ? `${age(last - first)} ago` : when(first)));
  svg.append(make("svg:text", {x: width, y: height - 5, "text-anchor": "end"}, stopped === null ? "now" : when(last)));
  return {x, y, width, height};
}
function collects(svg, times, what) {  // two moments make a curve; until then no axis pretends to be one
  if (times.length > 1) return false;
  const width = Math.max(200, svg.clientWidth), height = svg.clientHeight || 150;
  svg.replaceChildren(make("svg:text", {class: "collecting", x: width / 2, y: height / 2, "text-anchor": "middle"}, "collecting history"));
  svg.setAttribute("aria-label", `${what}: collecting history`);
  reads(svg, null, [], null);
  return true;
}
function line(svg, name, times, values, {x, y}) {
  const points = values.map((value, i) => `${x(times[i]).toFixed(1)},${y(value).toFixed(1)}`);
  if (points.length === 1) points.push(points[0]);
  svg.append(make("svg:polyline", {class: name, points: points.join(" ")}));
}
const greatest = (...lists) => lists.reduce((most, list) => list.reduce((a, b) => Math.max(a, b), most), 0);
const newest = values => values[values.length - 1];

// The values at a time of `times`: `tell` says those of an index.
function reads(svg, at, times, tell) {
  const mark = time => {
    svg.querySelector(".cursor")?.remove();
    if (time === null) return;
    const x = at.x(time).toFixed(1);
    svg.append(make("svg:line", {class: "cursor", x1: x, x2: x, y1: TOP, y2: at.height - BOTTOM}));
  };
  probe(svg, {keys: times, x: time => at.x(time), tell, mark});
}

export function drawRates(svg, {time, inserts, samples}) {
  if (collects(svg, time, "inserts and samples per second")) return;
  const at = frame(svg, nice(Math.max(1, greatest(inserts, samples))), value => short.format(value), time[0], newest(time));
  line(svg, "insert", time, inserts, at);
  line(svg, "sample", time, samples, at);
  const words = (name, values) => `${name} ${short.format(newest(values))} at the end, at most ${short.format(greatest(values))}`;
  svg.setAttribute("aria-label", `per second over ${age(newest(time) - time[0])}: ${words("inserts", inserts)}; ${words("samples", samples)}`);
  reads(svg, at, time, i => `${clock(time[i])}: ${short.format(inserts[i])} inserts/s, ${short.format(samples[i])} samples/s`);
}
export function drawItems(svg, times, values, breaks) {
  if (collects(svg, times, "items over the last days")) return;
  const at = frame(svg, nice(Math.max(2, greatest(values))), value => short.format(value), times[0], newest(times));
  broken(svg, "items", times, values, breaks, at);
  svg.setAttribute("aria-label", `items over ${age(newest(times) - times[0])}: ${whole.format(newest(values))} at the end, at most ${whole.format(greatest(values))}`);
  reads(svg, at, times, i => `${day(times[i])}: ${whole.format(values[i])} items`);
}
function broken(svg, name, times, values, breaks, at) {  // no line where no server ran
  let from = 0;
  for (const end of [...breaks, Infinity]) {
    const to = times.findIndex((time, i) => i >= from && time >= end);
    const stop = to < 0 ? times.length : to;
    if (stop > from) line(svg, name, times.slice(from, stop), values.slice(from, stop), at);
    from = stop;
  }
}
export function drawMemory(svg, times, values, limit, breaks = []) {
  if (collects(svg, times, "memory")) return;
  const peak = greatest(values), isNear = limit && peak > limit / 4;  // far below it, the limit would make the curve a flat line
  const most = Math.max(1, isNear ? Math.max(limit, peak) : peak * 1.25);
  const at = frame(svg, most, bytes, times[0], newest(times));
  if (isNear) svg.append(make("svg:line", {class: "limit", x1: LEFT, x2: at.width, y1: at.y(limit), y2: at.y(limit)}));
  broken(svg, "memory", times, values, breaks, at);
  const span = newest(times) - times[0], when = span > 43200 ? day : clock;
  svg.setAttribute("aria-label", `memory over ${age(span)}: ${bytes(newest(values))} at the end, at most ${bytes(peak)}${limit ? `, limit ${bytes(limit)}` : ""}`);
  reads(svg, at, times, i => `${when(times[i])}: ${bytes(values[i])}`);
}
// Runs as a band below, checkpoints as bars above it; a row of several checkpoints is as wide as their time.
export function drawTimeline(svg, past) {
  const {now, runs, checkpoints, gaps} = past;
  const first = Math.min(now - 600, ...runs.map(run => run.first), ...checkpoints.map(one => one.first));
  const most = greatest(checkpoints.map(one => one.bytes));
  const at = frame(svg, most || 1, bytes, Math.max(first, now - past.days * 86400), now, most ? [0, .5, 1] : []);
  const floor = at.y(0);
  if (!checkpoints.length) svg.append(make("svg:text", {class: "collecting", x: at.width / 2, y: at.height / 2, "text-anchor": "middle"}, "no checkpoint yet"));
  const box = (name, from, to, top, bottom, words) => {
    const x = Math.min(at.x(from), at.width - 3), made = make("svg:rect", {class: name, x: x.toFixed(1), y: top.toFixed(1),
      width: Math.max(name === "ran" ? 1 : 3, at.x(to) - x).toFixed(1), height: Math.max(1, bottom - top).toFixed(1)});
    if (words) made.append(make("svg:title", {}, words));
    svg.append(made);
  };
  for (const gap of gaps) if (gap.what === "checkpoint") box("missing", gap.first, gap.last, TOP, floor, `none succeeded from ${day(gap.first)} to ${day(gap.last)}`);
  for (const run of runs) box("ran", run.first, run.last, floor + 2, floor + 7, `a server ran from ${day(run.first)} to ${day(run.last)}`);
  for (const one of checkpoints) if (one.reason === "not needed") box("rested", one.first, one.last, floor - 3, floor, `from ${day(one.first)} to ${day(one.last)}: nothing had changed`);
  for (const one of checkpoints) if (!one.error && one.reason !== "not needed") box("written", one.first, one.last, at.y(one.bytes), floor, `${day(one.last)}: ${bytes(one.bytes)}`);
  for (const one of checkpoints) if (one.error) box("failed", one.first, one.last, TOP, floor, `${day(one.last)}: ${one.error}`);
  const ordered = [...checkpoints].sort((a, b) => a.last - b.last);
  reads(svg, at, ordered.map(one => one.last), i => {
    const {last, count, error, bytes: size, seconds, reason} = ordered[i];
    if (reason === "not needed") return `${day(last)}: nothing had changed since checkpoint ${ordered[i].generation}`;
    return `${day(last)}: ${count > 1 ? `${whole.format(count)} checkpoints, ` : ""}${error ? `failed: ${error}` : `${bytes(size)}, took ${took(seconds)}`}`;
  });
}

// Curves and the time line, as SVG. One unit is one pixel, so that text has its size at any width; the width is known once the
// picture stands on the page.
import {age, bytes, day, make, short} from "./text.js";

const drawn = new Map();
const LEFT = 64, BOTTOM = 24, TOP = 10;

// Draws now, and again whenever the width changes; what left the page is forgotten.
export function draw(svg, paint) {
  drawn.set(svg, paint);
  if (svg.isConnected) paint(svg);
}
function again() {
  for (const [svg, paint] of drawn) svg.isConnected ? paint(svg) : drawn.delete(svg);
}
window.addEventListener("resize", again);

function frame(svg, most, unit, first, last) {
  const width = Math.max(200, svg.clientWidth), height = svg.clientHeight || 150;
  const y = value => TOP + (height - BOTTOM - TOP) * (1 - value / most);
  const x = time => LEFT + (width - LEFT) * Math.min(1, Math.max(0, (time - first) / Math.max(1, last - first)));
  svg.replaceChildren();
  for (const share of [0, .5, 1]) {
    svg.append(make("svg:line", {class: "grid", x1: LEFT, x2: width, y1: y(most * share), y2: y(most * share)}));
    svg.append(make("svg:text", {x: LEFT - 6, y: y(most * share) + 4, "text-anchor": "end"}, unit(most * share)));
  }
  svg.append(make("svg:text", {x: LEFT, y: height - 5}, last > first ? `${age(last - first)} ago` : "no history yet"));
  svg.append(make("svg:text", {x: width, y: height - 5, "text-anchor": "end"}, "now"));
  return {x, y, width, height};
}
function line(svg, name, times, values, {x, y}) {
  const points = values.map((value, i) => `${x(times[i]).toFixed(1)},${y(value).toFixed(1)}`);
  if (points.length === 1) points.push(points[0]);
  svg.append(make("svg:polyline", {class: name, points: points.join(" ")}));
}
const greatest = (...lists) => lists.reduce((most, list) => list.reduce((a, b) => Math.max(a, b), most), 0);

export function drawRates(svg, {time, inserts, samples}) {
  const most = Math.max(1, greatest(inserts, samples));
  const at = frame(svg, most, value => short.format(value), time[0] ?? 0, time[time.length - 1] ?? 0);
  line(svg, "insert", time, inserts, at);
  line(svg, "sample", time, samples, at);
}
export function drawItems(svg, times, values, breaks) {
  const at = frame(svg, Math.max(1, greatest(values)), value => short.format(value), times[0] ?? 0, times[times.length - 1] ?? 0);
  broken(svg, "items", times, values, breaks, at);
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
  const peak = greatest(values), isNear = limit && peak > limit / 4;  // far below it, the limit would make the curve a flat line
  const most = Math.max(1, isNear ? Math.max(limit, peak) : peak * 1.25);
  const at = frame(svg, most, bytes, times[0] ?? 0, times[times.length - 1] ?? 0);
  if (isNear) svg.append(make("svg:line", {class: "limit", x1: LEFT, x2: at.width, y1: at.y(limit), y2: at.y(limit)}));
  broken(svg, "memory", times, values, breaks, at);
}
// Runs as a band below, checkpoints as bars above it; a row of several checkpoints is as wide as their time.
export function drawTimeline(svg, past) {
  const {now, runs, checkpoints, gaps} = past;
  const first = Math.min(now - 600, ...runs.map(run => run.first), ...checkpoints.map(one => one.first));
  const most = Math.max(1, greatest(checkpoints.map(one => one.bytes)));
  const at = frame(svg, most, bytes, Math.max(first, now - past.days * 86400), now);
  const floor = at.y(0);
  const box = (name, from, to, top, bottom, words) => {
    const x = Math.min(at.x(from), at.width - 3), made = make("svg:rect", {class: name, x: x.toFixed(1), y: top.toFixed(1),
      width: Math.max(name === "ran" ? 1 : 3, at.x(to) - x).toFixed(1), height: Math.max(1, bottom - top).toFixed(1)});
    if (words) made.append(make("svg:title", {}, words));
    svg.append(made);
  };
  for (const gap of gaps) if (gap.what === "checkpoint") box("missing", gap.first, gap.last, TOP, floor, `none succeeded from ${day(gap.first)} to ${day(gap.last)}`);
  for (const run of runs) box("ran", run.first, run.last, floor + 2, floor + 7, `a server ran from ${day(run.first)} to ${day(run.last)}`);
  for (const one of checkpoints) if (!one.error) box("written", one.first, one.last, at.y(one.bytes), floor, `${day(one.last)}: ${bytes(one.bytes)}`);
  for (const one of checkpoints) if (one.error) box("failed", one.first, one.last, TOP, floor, `${day(one.last)}: ${one.error}`);
}

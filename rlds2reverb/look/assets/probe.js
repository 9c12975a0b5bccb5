// The values of a chart at one place, as words below it: under the pointer or a finger, or where the arrow keys lead once it has the
// focus. Of the status page and of reports; each draws its charts in its own way.

const probes = new WeakMap();

// Makes a chart tell its values; again whenever it was drawn anew, and what is chosen stays chosen.
//   keys: what can be chosen, in order: times, steps or bins; [] for a chart without values.
//   x: a key -> pixels from the chart's left edge.
//   tell: the index of a key -> its values, in words.
//   mark: the chosen key, or null -> draws the cursor, or takes it away.
//   moved: called with a key that a person chose.
//   stays: whether it stays chosen when the pointer leaves.
// Returns a function by which others choose: a key, of which the nearest is taken, or null.
export function probe(chart, {keys, x, tell, mark, moved = () => {}, stays = false}) {
  let one = probes.get(chart);
  if (!one) probes.set(chart, one = listening(chart));
  Object.assign(one, {keys, x, tell, mark, moved, stays});
  if (one.chosen !== null) one.chosen = nearest(one, key => Math.abs(key - one.chosen));
  point(one);
  return key => {
    if (one.reading.getAttribute("aria-live") !== "off") one.reading.setAttribute("aria-live", "off");  // nobody asked this chart
    one.chosen = key === null ? null : nearest(one, other => Math.abs(other - key));
    point(one);
  };
}
function listening(chart) {
  const below = chart.nextElementSibling, has = below?.className === "reading";  // a page may keep its place
  const reading = has ? below : document.createElement("p");
  reading.className = "reading";
  if (!has) chart.after(reading);
  const one = {reading, chosen: null, keys: []};
  const choose = key => {
    reading.setAttribute("aria-live", "polite");
    one.chosen = key ?? null;
    point(one);
    if (one.chosen !== null) one.moved(one.chosen);
  };
  const last = () => one.keys[one.keys.length - 1];
  const under = event => {
    const x = event.clientX - chart.getBoundingClientRect().left;
    choose(nearest(one, key => Math.abs(one.x(key) - x)));
  };
  chart.addEventListener("pointerdown", under);
  chart.addEventListener("pointermove", under);
  chart.addEventListener("pointerleave", event => {
    if (!one.stays && event.pointerType !== "touch") choose(document.activeElement === chart ? last() : null);
  });
  chart.addEventListener("focus", () => { if (one.chosen === null) choose(last()); });
  chart.addEventListener("blur", () => { if (!one.stays) choose(null); });
  chart.addEventListener("keydown", event => {
    const here = one.keys.indexOf(one.chosen), end = one.keys.length - 1;
    const index = {ArrowLeft: Math.max(0, here - 1), ArrowRight: Math.min(end, here + 1), Home: 0, End: end}[event.key];
    if (index === undefined || here < 0) return;
    event.preventDefault();
    choose(one.keys[index]);
  });
  return one;
}
function nearest({keys}, distance) {
  let best = null, least = Infinity;
  for (const key of keys) {
    const apart = distance(key);
    if (apart < least) [best, least] = [key, apart];
  }
  return best;
}
function point({reading, chosen, keys, tell, mark}) {
  const index = chosen === null ? -1 : keys.indexOf(chosen);
  const words = index < 0 ? "" : tell(index);
  mark(index < 0 ? null : chosen);
  if (reading.textContent !== words) reading.textContent = words;  // what reads aloud says nothing twice
}

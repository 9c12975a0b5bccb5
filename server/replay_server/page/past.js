// The last days: checkpoints, gaps, memory. Asked for seldom, and after each checkpoint.
import {draw, drawItems, drawMemory, drawTimeline} from "./charts.js";
import {age, byId, bytes, day, make, percent, say, setBar, share, took, whole} from "./text.js";

const ASK_MS = 30000, WAIT_MS = 10000;
let answered = null, timer = null, newest = null, limit = 0;

function row(one) {
  const when = one.first === one.last ? day(one.last) : `${day(one.first)} to ${day(one.last)}`;
  const how = one.error ? `failed: ${one.error}` : one.reason === "not needed" ? "not needed: nothing had changed" : `written${one.reason ? `, ${one.reason}` : ""}`;
  return make("tr", {}, make("td", {}, when), make("td", {}, whole.format(one.count)), make("td", {}, one.generation ? String(one.generation) : ""),
    make("td", {}, one.error ? "" : bytes(one.bytes)), make("td", {}, took(one.seconds)), make("td", one.error ? {class: "bad"} : {}, how));
}
function gap({what, first, last}, now) {
  const until = last >= now - 1 ? "until now" : `to ${day(last)}`;
  return make("li", {class: what === "server" ? "warn" : "bad"},
    `${what === "server" ? "no server ran" : "no checkpoint succeeded"} for ${age(last - first)}, from ${day(first)} ${until}`);
}
function show(past) {
  newest = past;
  const rows = [...past.checkpoints].reverse();
  byId("gaps").replaceChildren(...past.gaps.slice(-8).reverse().map(one => gap(one, past.now)),
    ...(past.gaps.length > 8 ? [make("li", {class: "soft"}, `and ${past.gaps.length - 8} before`)] : []));
  const count = rows.reduce((sum, one) => sum + (one.reason === "not needed" ? 0 : one.count), 0), failed = rows.reduce((sum, one) => sum + (one.error ? one.count : 0), 0);
  const words = `${whole.format(count)} in ${past.days} days${failed ? `, ${whole.format(failed)} failed` : ""}`;
  say(byId("rows-title"), words);
  byId("rows").hidden = !rows.length;
  byId("written-rows").replaceChildren(make("tr", {}, ...["when", "how many", "checkpoint", "size", "took", "what came of it"].map(name => make("th", {}, name))), ...rows.map(row));
  byId("timeline").setAttribute("aria-label", `checkpoints over the last days: ${words}; ${past.gaps.length} gaps, listed below`);
  draw(byId("timeline"), svg => drawTimeline(svg, newest));
  drawDays();
}
function drawDays() {
  if (!newest) return;
  const {samples, gaps} = newest;
  const breaks = gaps.filter(one => one.what === "server").map(one => one.last);
  draw(byId("held"), svg => drawItems(svg, samples.time, samples.items, breaks));
  draw(byId("days"), svg => drawMemory(svg, samples.time, samples.memory_bytes, limit, breaks));
}
function complain(words) {
  byId("past-problem").hidden = !words;
  say(byId("past-problem"), words);
}
export async function askPast() {
  clearTimeout(timer);
  try {
    const answer = await fetch("history.json", {cache: "no-store", signal: AbortSignal.timeout(WAIT_MS)});
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const past = await answer.json();
    show(past);
    answered = Date.now() / 1000;
    byId("past").classList.remove("old");
    complain(past.problem ? `What is below is not kept: ${past.problem}` : "");
  } catch (error) {
    byId("past").classList.add("old");
    complain(answered ? `The history does not answer; what is shown is ${age(Date.now() / 1000 - answered)} old.` : "The history does not answer.");
  }
  if (!document.hidden) timer = setTimeout(askPast, ASK_MS);
}
export function memoryKind(server) {
  const used = share(server.memory_bytes, server.memory_limit_bytes);
  return used > .9 ? "bad" : used > .75 ? "warn" : "";
}
export function showMemory(server) {
  limit = server.memory_limit_bytes;
  const used = share(server.memory_bytes, limit), fill = make("div", {class: memoryKind(server)});
  setBar(fill, used);
  const words = limit ? `${bytes(server.memory_bytes)} of ${bytes(limit)} (${server.memory_limit_of === "machine" ? "what the machine has" : "limit of the container"})` : bytes(server.memory_bytes);
  byId("used").replaceChildren(
    ...(limit ? [make("div", {class: "bar", role: "meter", "aria-label": "memory", "aria-valuemin": 0, "aria-valuemax": limit, "aria-valuenow": server.memory_bytes}, fill)] : []),
    make("div", {class: "row"}, make("span", {}, words), make("span", {class: "soft"}, limit ? percent(used) : "")));
  draw(byId("minutes"), svg => drawMemory(svg, server.memory.time, server.memory.bytes, limit));
  if (newest && byId("days").childElementCount === 0) drawDays();
}

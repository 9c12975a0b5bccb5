// Asks the server how it is, every two seconds while somebody looks.
import {stopClock} from "./charts.js";
import {askPast, memoryKind, showMemory} from "./past.js";
import {lastInsert, showTables, stateOf as stateOfTable} from "./tables.js";
import {age, byId, bytes, clock, count, facts, inOrder, make, many, percent, say, share, short, tiles, took, whole} from "./text.js";

const ASK_MS = 2000, WAIT_MS = 5000;

function stateOf({server, checkpoints}) {
  if (server.state !== "ready") return ["warn", server.state + howFar(server)];
  if (checkpoints.writing_since !== null && server.problem)
    return ["warn", `writing a checkpoint for ${age(server.now - checkpoints.writing_since)}: inserts and samples wait`];
  if (checkpoints.problem) return ["bad", "checkpoints cannot be saved"];
  if (server.problem) return ["bad", `Reverb does not answer: ${server.problem}`];
  return checkpoints.writing_since !== null ? ["good", "ready, writing a checkpoint"] : ["good", "ready"];
}
// How far a start is: Reverb tells nothing, so it is the share of the checkpoint's bytes that its process has read.
function howFar({progress}) {
  const work = progress[progress.length - 1];
  if (!work) return "";
  return work.percent === undefined ? `: ${work.what} for ${age(work.seconds)}` : ` ${work.percent} %: ${work.what}, ${bytes(work.bytes)} of ${bytes(work.of_bytes)}`;
}
const toRunbook = name => make("a", {href: `runbook#${name.toLowerCase()}`}, name);

function alert(one) {
  const told = one.found.map(({table, words}) => table ? `${table}: ${words}` : words);
  if (one.count > one.found.length) told.push(`and ${whole.format(one.count - one.found.length)} more`);
  const grade = one.severity === "critical" ? "Critical" : "Warning";
  const when = one.firing ? `${grade}, firing for ${age(one.seconds)}` : `${grade} in ${age(Math.max(0, one.for_seconds - one.seconds))} if it lasts`;
  const kind = !one.firing ? "soft" : one.severity === "critical" ? "bad" : "warn";
  return make("li", {}, make("span", {class: `state ${kind}`}, when), " ", toRunbook(one.alert), `: ${told.join("; ")}`);
}
function rebuild(node, key, build) {  // only what changed: a link that has the focus keeps it
  if (node.dataset.key === key) return;
  const focused = node.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  node.dataset.key = key;
  node.replaceChildren(...build());
  if (focused) [...node.querySelectorAll("a")].find(link => link.getAttribute("href") === focused)?.focus();
}
function showAlerts(alerts) {
  const section = byId("alerts"), firing = alerts.filter(one => one.firing), critical = firing.filter(one => one.severity === "critical").length;
  section.hidden = !alerts.length;
  section.className = `card ${critical ? "critical" : firing.length ? "warning" : "soon"}`;
  const counts = [critical && `${critical} critical`, firing.length > critical && many(firing.length - critical, "warning")].filter(Boolean);
  say(byId("wrong"), counts.length ? `Alerts: ${counts.join(", ")}` : "No alert fires; one may soon");
  rebuild(byId("firing"), JSON.stringify(alerts.map(one => ({...one, seconds: age(one.seconds)}))), () => alerts.map(alert));
}
function together(all) {
  const section = byId("together");
  section.hidden = !all;
  if (!all) return;
  const up = all.servers.filter(server => server.state === "ready").length;
  say(byId("all"), `${up} of ${all.servers.length} servers ready`, up === all.servers.length ? "" : "bad");
  const row = (tag, ...cells) => make("tr", {}, ...cells.map(cell => make(tag, {}, cell)));
  const names = all.tables.map(table => table.name).sort(inOrder).slice(0, 20), more = all.tables.length > names.length;
  const items = one => one ? `${whole.format(one.size)} of ${whole.format(one.max_size)}` : "";
  const blocked = one => [one.limiter.samples_blocked && one.size && "sampling", one.limiter.inserts_blocked && "inserting"].filter(Boolean).map(what => `${what} waits at ${one.name}`);
  const state = server => {
    const waits = server.tables.flatMap(blocked), told = waits.length > 5 ? [...waits.slice(0, 5), `and ${waits.length - 5} more`] : waits;
    const cell = make("span", {class: server.state !== "ready" || server.problem ? "bad" : ""}, [[server.state, server.problem].filter(Boolean).join(": "), ...told].join("; "));
    if (server.state === "no answer") cell.append("; ", toRunbook("ReplayDown"));
    return cell;
  };
  const rest = more ? ["…"] : [];
  rebuild(byId("servers"), JSON.stringify(all), () => [
    row("th", "server", ...names, ...rest, "memory", "state"),
    row("td", "together", ...names.map(name => items(all.tables.find(table => table.name === name))), ...rest, bytes(all.servers.reduce((sum, server) => sum + server.memory_bytes, 0)), ""),
    ...all.servers.map(server => row("td", server.address, ...names.map(name => items(server.tables.find(table => table.name === name))), ...rest, bytes(server.memory_bytes), state(server)))]);
}
const passedOver = some => some ? `${some.count} at the start, the newest: ${some.reason}; now at ${some.path}` : "";
let newest = null, failures = null;

function showCheckpoints(server, checkpoints) {
  const last = checkpoints.last;
  if (newest !== (last?.generation ?? 0) || failures !== checkpoints.failures) {
    if (newest !== null) askPast();
    [newest, failures] = [last?.generation ?? 0, checkpoints.failures];
  }
  const isTight = checkpoints.free_bytes === null || checkpoints.free_bytes < checkpoints.needed_bytes;
  facts(byId("checkpoints"), [
    ["newest", last ? `checkpoint ${last.generation}, ${age(server.now - last.created)} ago` + (last.reason === "client" ? ", asked for by a client" : "") : "none yet"],
    ["nothing changed", last && checkpoints.holds_all_at > last.created ? `since then, as of ${clock(checkpoints.holds_all_at)}` + (checkpoints.not_needed ? `; ${many(checkpoints.not_needed, "checkpoint")} not needed since the start` : "") : ""],
    ["size", last ? `${bytes(last.bytes)}, written in ${took(last.seconds)}` : ""],
    ["folder", checkpoints.problem, "bad"],
    ["set aside", passedOver(checkpoints.set_aside), "warn"],
    ["not readable", passedOver(checkpoints.unreadable), "bad"],
    ["bucket", checkpoints.upload ? bucket(server, checkpoints.upload) : "", checkpoints.upload?.last_error ? "bad" : ""],
    ["disk", checkpoints.free_bytes === null ? "does not answer" : `${bytes(checkpoints.free_bytes)} free` + (checkpoints.needed_bytes ? `, the next one needs about ${bytes(checkpoints.needed_bytes)}` : ""), isTight ? "bad" : ""],
    ["failures", checkpoints.failures ? `${checkpoints.failures} since the start` : "", "bad"],
    ["last error", checkpoints.last_error, "bad"],
  ]);
  facts(byId("schedule"), [
    ["schedule", checkpoints.every_seconds === null ? "only on request and at the end" : `every ${age(checkpoints.every_seconds)}`],
    ["kept", `${checkpoints.generations ?? "an unknown number"} of ${rules(checkpoints.keep)} checkpoints`],
    ["takes", checkpoints.need ? checkpoints.need.words : "", checkpoints.need?.is_short ? "bad" : ""],
    ["folder", checkpoints.folder],
    ["holds", last ? held(last.items) : ""],
  ]);
  showKept(server, checkpoints.all);
}
const rules = keep => typeof keep === "number" ? keep : ["last", "hourly", "daily", "weekly"].filter(name => keep[name]).map(name => `${keep[name]} ${name}`).join(", ");
function showKept(server, all) {
  byId("kept").hidden = !all.length;
  say(byId("kept-title"), `${many(all.length, "checkpoint")} kept`);
  const row = (tag, ...cells) => make("tr", {}, ...cells.map(cell => make(tag, {}, cell)));
  rebuild(byId("kept-rows"), JSON.stringify(all.map(one => [one.name, one.kept, one.problem, one.age_seconds === null ? "" : age(one.age_seconds)])), () => [
    row("th", "checkpoint", "written (UTC)", "age", "items", "size", "kept as", "valid"),
    ...all.map(one => row("td", one.name, one.created === null ? "" : new Date(one.created * 1000).toISOString().slice(0, 16).replace("T", " "),
      one.age_seconds === null ? "" : age(one.age_seconds), held(one.items), one.bytes === null ? "" : bytes(one.bytes),
      one.kept.join(", ") || "until the next one is written", make("span", one.valid ? {} : {class: "bad"}, one.valid ? "yes" : one.problem)))]);
}
function bucket(server, upload) {
  const last = upload.last ? `checkpoint ${upload.last.generation}, ${age(server.now - upload.last.created)} old` : "none yet";
  return [`${last}, ${upload.generations ?? "an unknown number"} of ${rules(upload.keep)} in ${upload.place}`,
    upload.sending ? `checkpoint ${upload.sending} is being sent` : "", upload.last_error && `${upload.failures} failures, the newest: ${upload.last_error}`].filter(Boolean).join("; ");
}
function held(items) {
  const all = Object.entries(items).sort((a, b) => inOrder(a[0], b[0])), some = all.slice(0, 12).map(([name, count]) => `${name} ${whole.format(count)}`).join(", ");
  return all.length > 12 ? `${some}, and ${all.length - 12} more tables` : some;
}
function showJournal({server, journal}) {
  byId("journal").hidden = !journal || !(journal.count || journal.problem);
  if (!journal) return;
  say(byId("journal-title"), journal.count > journal.newest.length ? `Journal: the newest ${journal.newest.length} of ${whole.format(journal.count)} entries` : "Journal");
  say(byId("journal-problem"), journal.problem && `cannot be read: ${journal.problem}`);
  byId("journal-problem").hidden = !journal.problem;
  const kinds = {stopped: "bad", "cut off": "bad", running: "warn"};
  const row = (tag, ...cells) => make("tr", {}, ...cells.map(cell => make(tag, {}, cell)));
  const counted = (entry, count) => entry.ended === null || count === null ? "" : whole.format(count);
  rebuild(byId("entries"), JSON.stringify([journal.newest, journal.newest.map(entry => age(server.now - entry.began))]), () => [
    row("th", "id", "when", "what", "state", "tables", "episodes", "items", "new", "who", "from"),
    ...journal.newest.map(entry => row("td", entry.id, `${age(server.now - entry.began)} ago`, entry.kind,
      make("span", {class: kinds[entry.state] ?? ""}, [entry.state, entry.stopped].filter(Boolean).join(": ")),
      entry.tables.join(", "), counted(entry, entry.episodes) + (entry.episodes_known ? `, ${whole.format(entry.episodes_known)} known` : ""), counted(entry, entry.items), counted(entry, entry.items_new),
      `${entry.user}@${entry.host}` + (entry.note && ` (${entry.note})`), entry.source))]);
}
// At a glance. Of one table its own card has the counts.
function showTiles({server, tables, checkpoints}) {
  const sum = value => tables.reduce((all, one) => all + value(one), 0), end = values => values[values.length - 1] ?? 0;
  const words = tables.map(one => stateOfTable(one)[0]), having = word => words.filter(one => one === word).length;
  const states = ["blocked", "filling", "empty", "OK"].filter(having).map(word => `${whole.format(having(word))} ${word}`);
  const at = tables.map(one => one.last_insert_at).filter(one => one !== null), last = checkpoints.last;
  const used = share(server.memory_bytes, server.memory_limit_bytes), limit = server.memory_limit_bytes;
  const counts = [
    ["tables", whole.format(tables.length), states.join(", "), having("blocked") ? "warn" : ""],
    ["items", count(sum(one => one.size)), `of ${count(sum(one => one.max_size))}`],
    ["inserts/s", short.format(sum(one => end(one.rates.inserts)))],
    ["samples/s", short.format(sum(one => end(one.rates.samples)))],
    ["last insert", lastInsert(at.length ? Math.max(...at) : null, server.now, sum(one => one.inserts))],
  ];
  tiles(byId("tiles"), [
    ...(tables.length === 1 ? [] : counts),
    ["memory", bytes(server.memory_bytes), limit ? `of ${bytes(limit)}, ${percent(used)}` : "", memoryKind(server)],
    ["newest checkpoint", last ? `${age(server.now - last.created)} ago` : "none yet", checkpoints.failures ? `${many(checkpoints.failures, "failure")} since the start` : last ? bytes(last.bytes) : "", checkpoints.problem || checkpoints.last_error ? "bad" : ""],
  ]);
}
const COLOURS = {good: "#2d7a46", warn: "#8a5d00", bad: "#b42318", gone: "#5a6470"};
const host = location.host;
// Title and icon of the tab: the alerts that fire, how the server is, and which one it is.
function showTab(state, kind, alerts) {
  const firing = alerts.filter(one => one.firing), isCritical = firing.some(one => one.severity === "critical");
  const title = [firing.length && many(firing.length, "alert"), state, host].filter(Boolean).join(" · ");
  if (document.title !== title) document.title = title;
  const colour = COLOURS[kind === "gone" ? kind : isCritical ? "bad" : firing.length && kind === "good" ? "warn" : kind];
  const sign = kind === "gone" ? "×" : firing.length ? (firing.length > 9 ? "9+" : String(firing.length)) : kind === "good" ? "✓" : "!";
  const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="16" fill="${colour}"/>`
    + `<text x="16" y="23" font-family="sans-serif" font-weight="bold" font-size="20" text-anchor="middle" fill="#fff">${sign}</text></svg>`;
  const href = `data:image/svg+xml,${encodeURIComponent(icon)}`;
  if (byId("icon").getAttribute("href") !== href) byId("icon").setAttribute("href", href);
}
let alertsSeen = [];
function show(status) {
  const {server} = status, [kind, words] = stateOf(status);
  say(byId("state"), words, kind);
  alertsSeen = status.alerts;
  showTab(server.state === "ready" && kind === "good" ? "ready" : words, kind, status.alerts);
  say(byId("facts"), `${host} · up ${age(server.now - server.started_at)} · Reverb ${server.reverb} on port ${server.grpc_port}`);
  showAlerts(status.alerts);
  together(status.together);
  showTiles(status);
  showTables(status.tables, server.now);
  showMemory(server);
  showCheckpoints(server, status.checkpoints);
  showJournal(status);
}
let answered = null, timer = null;
function complain(reason) {
  document.body.classList.add("stale");
  byId("gone").hidden = false;
  const words = answered ? `no answer since ${clock(answered)}` : "no answer";
  say(byId("state"), words, "bad");
  showTab(words, "gone", alertsSeen);
  stopClock(answered);
  say(byId("shown"), `${answered ? `What is shown is ${age(Date.now() / 1000 - answered)} old.` : "Nothing is known yet."} The last question: ${reason}.`);
}
async function ask() {
  clearTimeout(timer);
  try {
    const answer = await fetch("status.json", {cache: "no-store", signal: AbortSignal.timeout(WAIT_MS)});
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    stopClock(null);
    show(await answer.json());
    answered = Date.now() / 1000;
    document.body.classList.remove("stale");
    byId("gone").hidden = true;
  } catch (error) {
    complain(error.name === "TimeoutError" ? `no answer within ${WAIT_MS / 1000} s` : error.message);
  }
  if (!document.hidden) timer = setTimeout(ask, ASK_MS);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) { ask(); askPast(); } });

async function write() {
  const words = byId("written"), token = byId("token");
  const headers = token.value ? {Authorization: `Bearer ${token.value.trim()}`} : {};
  const answer = await fetch("checkpoint", {method: "POST", headers});
  const result = await answer.json();
  if (answer.status === 401) {
    byId("secret").hidden = false;  // asked for only where one is wanted; kept nowhere
    token.focus();
    say(words, token.value ? "that is not this server's token" : "this server wants its token");
  } else {
    say(words, answer.ok && !result.written ? `nothing has changed since checkpoint ${result.generation}` : answer.ok ? `checkpoint ${result.generation}: ${bytes(result.bytes)} in ${result.seconds.toFixed(2)} s` : result.error);
  }
}
byId("actions").addEventListener("submit", async event => {
  event.preventDefault();
  byId("write").disabled = true;
  say(byId("written"), "writing");
  try {
    await write();
  } catch (error) {
    say(byId("written"), "no answer from the server");
  }
  byId("write").disabled = false;
  ask();
});
ask();
askPast();

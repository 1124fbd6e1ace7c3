// The page of one peer: what it does, what it gave, what happened to it.

import { card, empty, h } from "./dom.js";
import { ago, bytes, clock, duration, peerName, percent, short, whole } from "./format.js";
import { Log } from "./log.js";
import { stateTag } from "./peers_page.js";
import { poll } from "./poll.js";

function facts(rows) {
  return h("dl", { class: "facts" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? "–")]));
}

function nowCard({ now, reduces }) {
  if (now === null) return card("Now", {}, empty("This peer is not in the run now.", "What it gave before stands beside."));
  return card("Now", { aside: stateTag(now.status) }, facts([
    ["Role", now.role],
    ["Step", whole(now.step)],
    ["Speed", `${short(now.samples_per_second)} samples/s`],
    ["Samples towards the next step", whole(now.samples)],
    ["Sent / received", `${bytes(now.bytes_sent)} / ${bytes(now.bytes_received)}`],
    ["Averages for others", reduces === null || reduces === undefined ? "no plan" : `${percent(reduces)} of the gradient`],
    ["Path from here", now.path ? `${now.path}, ${duration(now.round_trip_s)} round trip` : "no connection of its own"],
    ["Last news", ago(now.age_s)],
  ]));
}

function givenCard({ given }) {
  if (given === null) return card("Contribution", {}, empty("Nothing yet.", "Counted while this dashboard watches."));
  return card("Contribution", {}, facts([
    ["Samples", whole(given.samples)],
    ["Steps, while this page watched", whole(given.steps)],
    ["Time, while this page watched", duration(given.hours * 3600)],
    ["Averaged for others", `${bytes(given.reduced_bytes)}, by the plan`],
    ["Last seen", clock(given.last_seen)],
  ]));
}

export function peerPage(main, { peer }) {
  const title = h("h1", { class: "id" }, peerName(peer));
  const head = h("div", { class: "page-head" }, h("div", {}, h("p", {}, h("a", { href: "/peers", "data-page": true }, "All peers")), title, h("p", { class: "id" }, peer)));
  const cards = h("div", { class: "grid" }, h("div", { class: "card wide" }, empty("Looking for this peer …", "")));
  const log = new Log("what happened to this peer", ["Nothing happened to it while this dashboard watched.", ""]);
  const happened = card("What happened", { width: "wide" }, log.element);
  main.append(head, cards);
  return poll(`peers/${peer}`, 2000, (found) => {
    if (found.name) title.textContent = found.name;
    const entries = Object.entries(found.journals).flatMap(([kind, { entries }]) => (kind === "findings" ? [] : entries)).concat(found.journals.findings.entries.filter(({ event }) => event !== "banned"));
    entries.sort((one, other) => one.t - other.t);
    log.show({ total: entries.length, entries }, (entry) => [entry.event, ` ${entry.why ?? (entry.seconds === undefined ? "" : `the state within ${duration(entry.seconds)}`)}`]);
    cards.replaceChildren(nowCard(found), givenCard(found), happened);
  }, (error) => cards.replaceChildren(h("div", { class: "card wide" }, empty("This peer cannot be shown.", error))));
}

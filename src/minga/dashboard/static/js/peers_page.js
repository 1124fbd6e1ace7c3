// The page of the peers: a table to sort and to search.

import { card, empty, h } from "./dom.js";
import { ago, bytes, duration, peerName, short, whole } from "./format.js";
import { poll } from "./poll.js";
import { Table } from "./table.js";

const KINDS = { training: "good", helping: "good", averaging: "good", syncing: "warn", paused: "warn", finished: "" };

/** The state of a peer as a tag. */
export function stateTag(status) {
  return h("span", { class: `tag ${KINDS[status] ?? ""}` }, status ?? "watching");
}

function nameCell(peer) {
  const link = h("a", { href: `/peers/${peer.peer_id}`, "data-page": true, class: peer.name ? "" : "id" }, peerName(peer.peer_id, peer.name));
  return peer.is_self ? h("span", {}, link, h("span", { class: "self" }, "  this one")) : link;
}

const COLUMNS = [
  { title: "Peer", value: (peer) => peer.name || peer.peer_id, show: nameCell, left: true },
  { title: "State", value: (peer) => peer.status ?? "watching", show: (peer) => stateTag(peer.status), left: true },
  { title: "Role", value: (peer) => peer.role, left: true },
  { title: "Step", value: (peer) => peer.step, show: (peer) => whole(peer.step) },
  { title: "Samples/s", value: (peer) => peer.samples_per_second, show: (peer) => short(peer.samples_per_second) },
  { title: "Samples", value: (peer) => peer.total_samples, show: (peer) => short(peer.total_samples) },
  { title: "Sent", value: (peer) => peer.bytes_sent, show: (peer) => bytes(peer.bytes_sent) },
  { title: "Received", value: (peer) => peer.bytes_received, show: (peer) => bytes(peer.bytes_received) },
  { title: "Path", value: (peer) => peer.path ?? "", show: (peer) => peer.path ?? "–", left: true },
  { title: "Round trip", value: (peer) => peer.round_trip_s, show: (peer) => duration(peer.round_trip_s) },
  { title: "Last news", value: (peer) => peer.age_s, show: (peer) => ago(peer.age_s) },
];

export function peersPage(main) {
  const table = new Table({
    columns: COLUMNS,
    caption: "Living peers of the run",
    sortBy: 4,
    words: (peer) => `${peer.peer_id} ${peer.name} ${peer.role} ${peer.status ?? "watching"} ${peer.path ?? ""}`,
    whenEmpty: ["No peer fits.", "Only living peers are listed; the leaderboard has those that left, too."],
  });
  const body = h("div", {}, h("div", { class: "card" }, empty("Looking for peers …", "They come within some seconds.")));
  const search = table.searchField("Peer, role or state");
  main.append(h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "Peers"), h("p", {}, "All living peers, as the peer behind this page sees them.")), h("div", { class: "actions" }, search)), body);
  const whole = card("Living peers", { aside: table.found }, table.element);
  return poll("peers", 3000, ({ peers }) => {
    table.show(peers);
    if (whole.parentElement !== body) body.replaceChildren(whole);
  }, (error) => {
    if (!table.rows.length) body.replaceChildren(h("div", { class: "card" }, empty("The peers cannot be shown.", error)));
  });
}

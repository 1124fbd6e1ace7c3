// The page that thanks: what each person and peer has given.

import { card, empty, h } from "./dom.js";
import { bytes, duration, peerName, short, whole } from "./format.js";
import { poll } from "./poll.js";
import { Table } from "./table.js";

function who(row) {
  const [first] = row.peers;
  const link = h("a", { href: `/peers/${first}`, "data-page": true, class: row.name ? "" : "id" }, peerName(first, row.name));
  return row.peers.length > 1 ? h("span", {}, link, h("span", { class: "self" }, `  ${row.peers.length} peers`)) : link;
}

const COLUMNS = [
  { title: "Place", value: (row) => row.place },
  { title: "Peer or person", value: (row) => row.name || row.peers[0], show: who, left: true },
  { title: "Samples", value: (row) => row.samples, show: (row) => short(row.samples) },
  { title: "Of these attested", value: (row) => row.attested_samples, show: (row) => short(row.attested_samples) },
  { title: "Steps", value: (row) => row.steps, show: (row) => whole(row.steps) },
  { title: "Time", value: (row) => row.hours, show: (row) => duration(row.hours * 3600) },
  { title: "Averaged for others", value: (row) => row.reduced_bytes, show: (row) => bytes(row.reduced_bytes) },
];

export function leaderboardPage(main) {
  const table = new Table({
    columns: COLUMNS,
    caption: "Contributions",
    sortBy: 0,
    descending: false,
    words: (row) => `${row.name} ${row.peers.join(" ")}`,
    whenEmpty: ["Nobody has given anything yet.", "Peers appear here with their first samples."],
  });
  const body = h("div", {}, h("div", { class: "card" }, empty("Counting …", "")));
  const whole = card("Contributions", { aside: table.found }, table.element);
  main.append(
    h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "Leaderboard"), h("p", {}, "What each has given to the run. Samples are counted by the peers themselves; attested are those that others of the members have signed, which takes some minutes and never covers the last ones. Steps, time and averaged bytes while this dashboard watched, the bytes by the plan.")), h("div", { class: "actions" }, table.searchField("Find a peer or person"))),
    body,
  );
  return poll("leaderboard", 5000, ({ rows }) => {
    table.show(rows);
    if (whole.parentElement !== body) body.replaceChildren(whole);
  }, (error) => {
    if (!table.rows.length) body.replaceChildren(h("div", { class: "card" }, empty("The leaderboard cannot be shown.", error)));
  });
}

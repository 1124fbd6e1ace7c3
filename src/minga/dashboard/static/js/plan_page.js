// The page of the plan: who limits the run, and what would help.

import { card, empty, h } from "./dom.js";
import { bytes, duration, percent } from "./format.js";
import { poll } from "./poll.js";
import { Table } from "./table.js";

function peerLink(row) {
  return h("a", { href: `/peers/${row.peer_id}`, "data-page": true, class: "id" }, row.name);
}

const COLUMNS = [
  { title: "Peer", value: (row) => row.name, show: peerLink, left: true },
  { title: "Averages for others", value: (row) => row.reduces, show: (row) => (row.reduces ? percent(row.reduces) : "–") },
  { title: "Sends", value: (row) => row.upload_bytes, show: (row) => bytes(row.upload_bytes) },
  { title: "Receives", value: (row) => row.download_bytes, show: (row) => bytes(row.download_bytes) },
  { title: "Busy", value: (row) => row.busy_s, show: (row) => duration(row.busy_s) },
  { title: "A day, up", value: (row) => row.upload_bytes_per_day, show: (row) => bytes(row.upload_bytes_per_day) },
  { title: "A day, down", value: (row) => row.download_bytes_per_day, show: (row) => bytes(row.download_bytes_per_day) },
  { title: "Why", value: (row) => row.reason, left: true, words: true },
];

function figure(name, value, { unit = "", words = false } = {}) {
  return h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: words ? "words" : null }, value, h("small", {}, unit)));
}

function limit({ binding }) {
  if (binding === null) return "nothing that is known";
  return binding.other === null ? `the ${binding.kind} of ${binding.peer}` : `the path from ${binding.peer} to ${binding.other}`;
}

export function planPage(main) {
  const table = new Table({ columns: COLUMNS, caption: "What each peer does in a round", sortBy: 1, whenEmpty: ["No peers.", ""] });
  const body = h("div", {}, h("div", { class: "card" }, empty("Planning …", "The plan of the next rounds is worked out.")));
  main.append(h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "Plan"), h("p", {}, "Who averages how much in the next rounds, which line they wait for, and what would make steps shorter."))), body);
  const tasks = card("What each peer does", { note: "in one round" }, table.element);
  const figures = h("dl", { class: "tiles" });
  const sentences = h("ul", { class: "sentences" });
  const words = card("What limits the run, and what would help", {}, sentences);
  const none = (why) => {
    tasks.remove();
    body.replaceChildren(h("div", { class: "card" }, empty("There is no plan to show.", why)));
  };
  return poll("plan", 10_000, (plan) => {
    if (plan.why_none !== null) return none(plan.why_none);
    table.show(plan.peers.map((row, place) => ({ ...row, peer_id: plan.peer_ids[place] })));
    figures.replaceChildren(
      figure("A round takes", duration(plan.round_s)),
      figure("A step takes", duration(plan.step_s)),
      figure("Computing takes", duration(plan.computing_s)),
      figure("Gradient", bytes(plan.vector_bytes)),
      figure("With one more auxiliary", duration(plan.one_more_auxiliary.step_s), { unit: "a step" }),
      figure("Rounds wait for", limit(plan), { words: true }),
    );
    sentences.replaceChildren(...plan.sentences.map((text) => h("li", {}, text)));
    if (tasks.parentElement === null) body.replaceChildren(figures, h("div", { class: "stack" }, words, tasks));
  }, none);
}

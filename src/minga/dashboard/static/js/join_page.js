// The page for newcomers: what the run is, what it uses, and the one command with the link.

import { get } from "./api.js";
import { card, empty, h } from "./dom.js";
import { whole } from "./format.js";

function copyButton(text) {
  const button = h("button", { type: "button", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy it by hand";
    }
    setTimeout(() => (button.textContent = "Copy"), 2500);
  }
  return button;
}

const USES = [
  "The processor or GPU, at full load while it trains; --threads and --device limit that.",
  "The internet connection, all the time: minga join says how much a day before it begins. --max-traffic and --max-upload limit it.",
  "Memory and disk for the model, its optimizer and the checkpoints.",
  "The other peers see your IP address. minga runs no code that it receives from them.",
  "Ctrl-C leaves, at any time.",
];

function ways(found) {
  const details = found.ways.map(({ title, commands }, place) =>
    h("details", { open: place === 0 }, h("summary", {}, h("strong", {}, title)), h("div", { class: "copy-row" }, h("pre", {}, commands.join("\n")), copyButton(commands.join("\n")))),
  );
  return card("From nothing", { width: "two-thirds", note: "minga needs Python 3.11 or later, or Docker. REPOSITORY stands for the address of its source, which the organiser tells you." }, h("div", { class: "stack" }, details));
}

function about(found) {
  const rows = [
    ["Model", found.recipe ?? "the organiser's own"],
    ["Samples per step", found.samples_per_step === found.most_samples_per_step ? whole(found.samples_per_step) : `${whole(found.samples_per_step)} now, at most ${whole(found.most_samples_per_step)}`],
    ["Steps", found.complete_at !== null ? `complete, ${whole(found.complete_at)}` : found.last_step === null ? "no end is set" : whole(found.last_step)],
    ["Open to", found.mode.startsWith("members") ? "members" : "every peer with the link"],
    ["Run", h("span", { class: "id" }, found.run_id)],
    ["Organiser's key", h("span", { class: "id" }, found.organiser)],
  ];
  return card("The run", { width: "third" }, h("dl", { class: "facts" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

export function joinPage(main) {
  const body = h("div", { class: "grid" }, h("div", { class: "card wide" }, empty("Asking for the link …", "")));
  const title = h("h1", {}, "Take part");
  const lead = h("p", {}, "Volunteers train one neural network together, each on their own machine. Yours can take part.");
  main.append(h("div", { class: "page-head" }, h("div", {}, title, lead)), body);
  let ended = false;
  get("join").then((found) => {
    if (ended) return;
    if (found.complete_at !== null) {
      title.textContent = "The run is complete";
      lead.textContent = `Step ${whole(found.complete_at)} was its last one: there is nothing left to take part in.`;
      const model = found.export === null
        ? empty("The organiser has the model.", "It is one of their own program's.")
        : h("div", { class: "copy-row" }, h("pre", { class: "big-command", tabindex: "0" }, found.export), copyButton(found.export));
      body.replaceChildren(card("Get the model", { width: "two-thirds", note: "While a peer that has its state is there:" }, model), about(found));
      return;
    }
    const words = found.link === null
      ? "This run is for members: ask its organiser for an invitation, and put it in the place of LINK."
      : "With minga installed, this one command is all:";
    body.replaceChildren(
      card("Join", { width: "wide", note: words }, h("div", { class: "copy-row" }, h("pre", { class: "big-command", tabindex: "0" }, found.command), copyButton(found.command))),
      ways(found),
      about(found),
      card("What it uses", { width: "wide" }, h("ul", { class: "sentences" }, USES.map((text) => h("li", {}, text)))),
    );
  }, (error) => body.replaceChildren(h("div", { class: "card wide" }, empty("The link cannot be shown.", error.message))));
  return () => (ended = true);
}

// The frame of all pages: which page an address shows, what stands in the bar, what to say when the server is gone.

import { get } from "./api.js";
import { empty, h, say } from "./dom.js";
import { leaderboardPage } from "./leaderboard_page.js";
import { peerPage } from "./peer_page.js";
import { peersPage } from "./peers_page.js";
import { runPage } from "./run_page.js";
import { Store } from "./store.js";

const PAGES = [
  [/^\/$/, "Run", runPage],
  [/^\/peers$/, "Peers", peersPage],
  [/^\/peers\/([0-9a-f]{64})$/, "Peer", peerPage],
  [/^\/leaderboard$/, "Leaderboard", leaderboardPage],
];
const STATES = {
  training: ["training", "good"],
  alone: ["one peer only", "warn"],
  syncing: ["peers are syncing", "warn"],
  paused: ["paused", "warn"],
  founding: ["waiting for founders", "warn"],
  finished: ["finished", ""],
  empty: ["no peer trains", "bad"],
};

const store = new Store();
const main = document.getElementById("main");
let leave = () => {};

function showPage({ moved = false } = {}) {
  leave();
  const found = PAGES.map(([pattern, title, page]) => [location.pathname.match(pattern), title, page]).find(([match]) => match);
  const [match, title, page] = found ?? [null, "Not found", notFound];
  main.replaceChildren();
  leave = page(main, { store, peer: match?.[1], go }) ?? (() => {});
  document.body.dataset.page = title;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = new URL(link.href).pathname === location.pathname || (title === "Peer" && link.pathname === "/peers");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  nameWindow();
  if (moved) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
}

function notFound(host) {
  host.append(h("h1", {}, "No such page"), empty("There is nothing at this address.", "The bar above leads to all pages."));
}

function go(path) {
  history.pushState(null, "", path);
  showPage({ moved: true });
}

function nameWindow() {
  const name = store.run?.name ?? "minga";
  document.title = `${document.body.dataset.page} · ${name}`;
}

function showFrame() {
  const trouble = document.getElementById("trouble");
  const words = !store.connected
    ? `${store.error ? `No news: ${store.error}` : "The dashboard does not answer"}. What you see is what was last known; trying again …`
    : store.run === null && store.error
      ? `Nothing to show yet: ${store.error}.`
      : "";
  trouble.hidden = !words;
  say(trouble, words);
  if (store.run === null) return;
  say(document.getElementById("run-name"), store.run.name);
  say(document.getElementById("run-id"), `Run ${store.run.run_id.slice(0, 16)}`);
  const [text, kind] = STATES[store.run.now.state] ?? [store.run.now.state, ""];
  const state = document.getElementById("state");
  say(state, text);
  state.className = `state ${kind}`;
  nameWindow();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-page]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.pathname);
});
addEventListener("popstate", () => showPage({ moved: true }));
document.getElementById("theme").addEventListener("click", () => globalThis.changeTheme());
store.addEventListener("change", showFrame);
showPage();
store.start();
get("").then(({ version }) => say(document.getElementById("version"), `minga ${version}`), () => {});

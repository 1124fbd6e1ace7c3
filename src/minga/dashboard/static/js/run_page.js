// The page of the run: its figures now, its course in charts, and what happened.

import { empty, h } from "./dom.js";
import { RunCharts } from "./run_charts.js";
import { showTiles, tiles } from "./run_tiles.js";

export function runPage(main, { store }) {
  const waiting = h("div", { class: "card" }, empty("Looking for the run …", "The first figures come within some seconds."));
  const trouble = h("div", { class: "card", hidden: true });
  const figures = tiles();
  const charts = new RunCharts();
  const head = h("div", { class: "page-head" }, h("h1", {}, "Run"));
  const body = h("div", { hidden: true }, figures.element, trouble, charts.element);
  main.append(head, waiting, body);

  function show() {
    if (store.run === null) return;
    waiting.hidden = true;
    body.hidden = false;
    showTiles(figures, store.run);
    const problem = store.run.now.trouble;
    trouble.hidden = !problem;
    if (problem) trouble.replaceChildren(h("span", { class: "tag warn" }, "Problem here"), ` ${problem.text}`);
    charts.show(store.run);
  }

  store.addEventListener("change", show);
  show();
  return () => {
    store.removeEventListener("change", show);
    charts.close();
  };
}

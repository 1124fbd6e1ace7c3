// A table that sorts by a click on a heading, finds by words, and shows long lists in parts.

import { empty, h, say } from "./dom.js";

const PART = 100;

/**
 * `columns`: [{title, value (to sort by), show (what stands there; default: value), left}], `words` what a search looks
 * at, `key` what names a row. Rows are replaced by `show(rows)`.
 */
export class Table {
  constructor({ columns, caption, sortBy = 0, descending = true, words = null, whenEmpty }) {
    Object.assign(this, { columns, sortBy, descending, words, whenEmpty, rows: [], limit: PART, wanted: "" });
    this.heads = columns.map(({ title, left }, place) =>
      h("th", { scope: "col", class: left ? "left" : null }, h("button", { type: "button", onclick: () => this.sort(place) }, title)),
    );
    this.body = h("tbody");
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.showMore() }, "Show more");
    this.found = h("p", { class: "note", role: "status" });
    this.nothing = h("div", { hidden: true }, empty(...whenEmpty));
    const table = h("table", {}, h("caption", { class: "visually-hidden" }, caption), h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.element = h("div", {}, this.nothing, h("div", { class: "scroll", tabindex: "0" }, table), this.more);
    this.markHeads();
  }

  /** The field with which rows are found. */
  searchField(label) {
    const input = h("input", { type: "search", placeholder: label, "aria-label": label, oninput: () => this.search(input.value) });
    return input;
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  search(text) {
    this.wanted = text.trim().toLowerCase();
    this.limit = PART;
    this.draw();
  }

  sort(place) {
    this.descending = place === this.sortBy ? !this.descending : !this.columns[place].left;
    this.sortBy = place;
    this.markHeads();
    this.draw();
  }

  showMore() {
    this.limit += 5 * PART;
    this.draw();
  }

  markHeads() {
    this.heads.forEach((head, place) => {
      if (place === this.sortBy) head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  draw() {
    const found = this.wanted && this.words ? this.rows.filter((row) => this.words(row).toLowerCase().includes(this.wanted)) : [...this.rows];
    const { value } = this.columns[this.sortBy];
    const way = this.descending ? -1 : 1;
    found.sort((one, other) => way * compare(value(one), value(other)));
    this.body.replaceChildren(...found.slice(0, this.limit).map((row) => h("tr", {}, this.columns.map((column) => cell(column, row)))));
    this.more.hidden = found.length <= this.limit;
    this.nothing.hidden = found.length > 0;
    say(this.found, this.rows.length ? `${found.length} of ${this.rows.length}` : "");
  }
}

function cell({ value, show, left, words }, row) {
  const shown = (show ?? value)(row);
  return h("td", { class: words ? "words" : left ? "left" : null }, shown ?? "–");
}

function compare(one, other) {
  if (typeof one === "string" || typeof other === "string") return String(one ?? "").localeCompare(String(other ?? ""));
  return (one ?? -Infinity) - (other ?? -Infinity);
}

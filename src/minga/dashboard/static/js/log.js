// A list of what happened, newest first; drawn again only when something is new.

import { empty, h } from "./dom.js";
import { clock } from "./format.js";

const KINDS = { joined: "good", resumed: "good", admitted: "good", left: "", lost: "bad", banned: "bad", accused: "bad", suspected: "warn", paused: "warn", regrouped: "warn" };

export class Log {
  constructor(label, whenEmpty, most = 60) {
    this.most = most;
    this.seen = -1;
    this.list = h("ul", { class: "log", tabindex: "0", "aria-label": label });
    this.empty = empty(...whenEmpty);
    this.element = h("div", {}, this.empty, this.list);
  }

  /** Shows the newest entries of a journal; `words` makes a tag and the rest of a line. */
  show(journal, words) {
    if (journal.total === this.seen) return;
    this.seen = journal.total;
    this.empty.hidden = journal.entries.length > 0;
    this.list.hidden = journal.entries.length === 0;
    const newest = journal.entries.slice(-this.most).reverse();
    this.list.replaceChildren(...newest.map((entry) => {
      const [tag, ...rest] = words(entry);
      const time = h("time", { datetime: new Date(entry.t * 1000).toISOString() }, clock(entry.t));
      return h("li", {}, time, h("span", {}, h("span", { class: `tag ${KINDS[tag] ?? ""}` }, tag), rest));
    }));
  }
}

// Fetches a document again and again while a page shows it.

import { get } from "./api.js";

/** Calls `show` with each document and `fail` with the words of an error; returns the function that ends it. */
export function poll(name, periodMs, show, fail) {
  let ended = false;
  let timer = 0;
  async function once() {
    try {
      const found = await get(name);
      if (!ended) show(found);
    } catch (error) {
      if (!ended) fail(error.message);
    }
    if (!ended) timer = setTimeout(once, document.hidden ? 4 * periodMs : periodMs);
  }
  once();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

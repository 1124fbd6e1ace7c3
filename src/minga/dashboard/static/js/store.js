// The run as this page knows it: the whole document once, then the ends of curves and journals as they grow.

import { get, listen } from "./api.js";

export class Store extends EventTarget {
  constructor() {
    super();
    this.run = null;
    this.connected = true;
    this.error = null;
    this.fetching = null;
    this.ratesAt = 0;
  }

  async start() {
    await this.load();
    listen((message) => this.take(message), (connected, error) => this.note(connected, error));
  }

  /** Fetches the whole document; tries again every two seconds while there is none. */
  load() {
    this.fetching ??= this.fetchOnce().finally(() => {
      this.fetching = null;
    });
    return this.fetching;
  }

  async fetchOnce() {
    for (;;) {
      try {
        this.run = await get("run");
        this.error = null;
        this.ratesAt = Date.now();
        this.tell();
        return;
      } catch (error) {
        this.error = error.message;
        this.tell();
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    }
  }

  take(message) {
    if (this.run === null || !message.now) return;
    const fits = Object.entries(message.series).every(([name, tail]) => extend(this.run.series[name], tail))
      && Object.entries(message.journals).every(([name, tail]) => append(this.run.journals[name], tail));
    this.run.now = message.now;
    // Speeds by peer are not in the messages: they are as many numbers as all the rest.
    if (!fits || Date.now() - this.ratesAt > 10_000) this.load();
    else this.tell();
  }

  note(connected, error = null) {
    if (connected && !this.connected) this.load();
    this.connected = connected;
    this.error = error;
    this.tell();
  }

  tell() {
    this.dispatchEvent(new Event("change"));
  }
}

/** Puts the end of a curve in place; false if points between are missing. */
export function extend(series, tail) {
  const length = series.columns.t.length;
  if (series.epoch !== tail.epoch || tail.from > length) return false;
  for (const [name, values] of Object.entries(tail.columns)) series.columns[name].splice(tail.from, length, ...values);
  return true;
}

/** Appends the new entries of a journal; false if some between are missing. */
export function append(journal, tail) {
  const missing = tail.total - journal.total;
  if (missing < 0 || missing > tail.entries.length) return false;
  if (missing > 0) journal.entries.push(...tail.entries.slice(-missing));
  if (journal.entries.length > 400) journal.entries.splice(0, journal.entries.length - 400);
  journal.total = tail.total;
  return true;
}

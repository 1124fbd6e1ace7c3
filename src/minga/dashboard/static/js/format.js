// Numbers with units, as people read them.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1234567 -> "1,234,567" */
export const whole = (value) => (value === null || value === undefined ? "–" : grouped.format(value));

/** Three digits: 1234 -> "1,234", 12.34 -> "12.3", 2.1e6 -> "2.10 M" */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e4) return grouped.format(value);
  for (const [unit, by] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (size >= by) return `${digits(value / (unit === "k" ? 1e3 : by))} ${unit}`;
  }
  return size >= 1000 ? grouped.format(value) : digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || value === 0) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.01 ? value.toFixed(2) : value.toPrecision(2);
}

export const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(value >= 100 ? 1 : 3));

/** Bytes with decimal units, as rates have. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(size) < 1000 || unit === "TB") return `${unit === "B" ? Math.round(size) : digits(size)} ${unit}`;
    size /= 1000;
  }
}

/** Bytes per second as bits per second, which is how lines are sold. */
export function bitRate(value) {
  if (value === null || value === undefined) return "–";
  let bits = value * 8;
  for (const unit of ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]) {
    if (bits < 1000 || unit === "Gbit/s") return `${digits(bits)} ${unit}`;
    bits /= 1000;
  }
}

/** Seconds: 0.0123 -> "12 ms", 75 -> "1 min 15 s", 9000 -> "2 h 30 min" */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${digits(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${digits(share * 100)} %`);

/** The time of day; with the day, if it is another one. */
export function clock(unix) {
  const date = new Date(unix * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}

/** A peer id as logs write it. */
export const peerName = (peer, name = "") => name || (peer ? peer.slice(0, 10) : "all peers");

/** How long ago: "now", "12 s ago" */
export const ago = (seconds) => (seconds < 1 ? "now" : `${duration(seconds)} ago`);

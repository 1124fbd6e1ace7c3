// Asks the dashboard's API, and hears what changes.

const API = "/api/v1";

/**
 * A document of the API; without a name, what there is. Throws an Error with the server's words, or if the document is
 * not there after `patienceMs`: a browser has few connections, and a proxy may hold each of them for good.
 */
export async function get(name, patienceMs = 60_000) {
  const signal = AbortSignal.timeout(patienceMs);
  return answer(await fetch(name ? `${API}/${name}` : API, { headers: { Accept: "application/json" }, signal }));
}

async function answer(response) {
  let document = null;
  try {
    document = await response.json();
  } catch {
    // no JSON, or only a part of it
  }
  if (!response.ok || document === null) throw new Error(document?.error ?? `the server answered ${response.status}`);
  return document;
}

/**
 * Calls `take` with each message about what changed, and `tell` with whether the connection stands, and with the
 * server's words if it refuses.
 */
export function listen(take, tell) {
  const source = new EventSource(`${API}/stream`);
  source.addEventListener("open", () => tell(true));
  source.addEventListener("error", async () => {
    tell(false, null);
    // A browser connects again by itself, but never after an answer that is no stream.
    if (source.readyState !== EventSource.CLOSED) return;
    tell(false, await get("", 5000).then(() => null, (error) => error.message));
    setTimeout(() => listen(take, tell), 5000);
  });
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
}

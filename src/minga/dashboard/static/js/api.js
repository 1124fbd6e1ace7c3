// Asks the dashboard's API, and hears what changes.

const API = "/api/v1";

/** A document of the API; without a name, what there is. Throws an Error with the server's words. */
export async function get(name) {
  return answer(await fetch(name ? `${API}/${name}` : API, { headers: { Accept: "application/json" } }));
}

async function answer(response) {
  let document = null;
  try {
    document = await response.json();
  } catch {
    // no JSON: the status says it
  }
  if (!response.ok) throw new Error(document?.error ?? `the server answered ${response.status}`);
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
    let waits = true;
    setTimeout(() => {
      waits = false; // words that come later would be of a connection that may stand again
      listen(take, tell);
    }, 5000);
    const words = await get("").then(() => null, (error) => error.message);
    if (waits) tell(false, words);
  });
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
}

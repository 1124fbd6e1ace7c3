// The organiser's orders. Each is confirmed in a dialog that says what it does.

import { sendOrder } from "./api.js";
import { h } from "./dom.js";

/** Asks for confirmation, sends the order, and shows what it does or why it could not be. `fields` makes the order. */
function confirmOrder({ title, text, button, danger = false, inputs = [], order }) {
  const outcome = h("p", { role: "status" });
  const send = h("button", { class: danger ? "danger" : "primary" }, button);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h("form", { onsubmit: submit }, h("h2", {}, title), h("p", {}, text), inputs, outcome, h("div", { class: "actions" }, send, cancel));
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, form);
  async function submit(event) {
    event.preventDefault();
    send.disabled = true;
    outcome.className = "note";
    outcome.textContent = "Signing and telling the peers …";
    try {
      outcome.textContent = (await sendOrder(order())).text;
      outcome.className = "tag good";
      send.remove();
      cancel.textContent = "Close";
      cancel.focus();
    } catch (error) {
      outcome.textContent = `It was not done: ${error.message}`;
      outcome.className = "note";
      send.disabled = false;
    }
  }
  document.body.append(dialog);
  dialog.showModal();
}

function pause() {
  confirmOrder({
    title: "Pause the run?",
    text: "All peers stay connected and take no steps from one soon on, until you let the run go on.",
    button: "Pause the run",
    order: () => ({ action: "pause" }),
  });
}

function resume() {
  confirmOrder({ title: "Let the run go on?", text: "All peers take steps again.", button: "Go on", order: () => ({ action: "resume" }) });
}

function amend() {
  const input = h("input", { id: "change", required: true, placeholder: "optimizer.learning_rate=0.001", autocomplete: "off" });
  confirmOrder({
    title: "Change a setting?",
    text: "All peers go by the new value from one step on. It is signed with your key and kept for good.",
    button: "Sign and send",
    inputs: [h("label", { for: "change" }, "Setting and value"), input],
    order: () => ({ action: "amend", changes: [input.value] }),
  });
}

/** The buttons of the run's page. */
export function orderButtons(store) {
  const button = h("button", { type: "button", onclick: () => (isPaused() ? resume() : pause()) });
  const isPaused = () => store.run?.now.state === "paused";
  const name = () => (button.textContent = isPaused() ? "Resume …" : "Pause …");
  store.addEventListener("change", name);
  name();
  return h("div", { class: "actions" }, button, h("button", { type: "button", onclick: amend }, "Amend …"));
}

/** The button of a peer's page. */
export function banButton(peer) {
  const reason = h("input", { id: "reason", maxlength: "200", autocomplete: "off" });
  return h("button", { type: "button", onclick: () => confirmOrder({
    title: `Ban ${peer.slice(0, 10)}?`,
    text: "No peer connects to it any more. A ban is signed with your key and cannot be taken back. In a run that is open to all it costs its target no more than a new key.",
    button: "Ban this peer",
    danger: true,
    inputs: [h("label", { for: "reason" }, "Reason, which all peers see"), reason],
    order: () => ({ action: "ban", peer, reason: reason.value }),
  }) }, "Ban …");
}

// A choice among few, as buttons of which one is pressed.

import { h } from "./dom.js";

export function segments(label, choices, choose) {
  const buttons = choices.map(([value, text], place) =>
    h("button", { type: "button", "aria-pressed": String(place === 0), "data-value": value, onclick: () => press(value) }, text),
  );
  function press(value) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
    choose(value);
  }
  return h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

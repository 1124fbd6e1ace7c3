// Makes elements. Texts become text nodes, so nothing that a peer sent can become markup.

/** An element: h("p", {class: "note"}, "text", child). Functions in `on…` listen; false, null and undefined are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets the text of an element, if it is another one: untouched text keeps its selection. */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** What stands where there is nothing yet. */
export function empty(title, text) {
  return h("p", { class: "empty" }, h("strong", {}, title), text);
}

/** A card with a heading; `aside` stands at its right. */
export function card(title, { width = "", aside = null, note = null } = {}, ...children) {
  const id = `card-${title.toLowerCase().replace(/\W+/g, "-")}`;
  const words = h("div", {}, h("h2", { id }, title), note && h("p", {}, note));
  return h("section", { class: `card ${width}`, "aria-labelledby": id }, h("div", { class: "card-head" }, words, aside), ...children);
}

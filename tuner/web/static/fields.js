// Show the errors of a job next to the fields or lines that they are about.

import { fill, h } from "./dom.js";

/** Show errors below their fields. `inputs` maps JSON pointers to fields. An error belongs to a field if the error's pointer is the field's
 * pointer or continues it. */
export function showFieldErrors(inputs, errors) {
  for (const [pointer, input] of Object.entries(inputs)) {
    const own = errors.filter((error) => error.pointer === pointer || error.pointer.startsWith(`${pointer}/`));
    const place = input.parentElement.querySelector(".fault") ?? input.parentElement.appendChild(h("span", { class: "fault", id: `${input.id}-fault` }));
    fill(place, own.map((error) => error.detail).join(" "));
    if (own.length) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    if (own.length) input.setAttribute("aria-describedby", place.id);
    else input.removeAttribute("aria-describedby");
  }
}

/** Find the deepest part of a JSON pointer that exists in a YAML or JSON text. Return its place as `[begin, end, line]`, or null. */
export function findPlace(source, pointer) {
  let from = 0, place = null;
  for (const part of pointer.split("/").slice(1)) {
    const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
    const pattern = new RegExp(`(^|[\\s{,])(["']?)${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}\\2\\s*:`, "gm");
    pattern.lastIndex = from;
    const match = pattern.exec(source);
    if (match === null) break;
    const begin = match.index + match[1].length;
    place = [begin, match.index + match[0].length - 1, source.slice(0, begin).split("\n").length];
    from = match.index + match[0].length;
  }
  return place;
}

/** Create the display of an error, with a link to its line in `area`. */
export function errorWithLine(area, error) {
  const place = findPlace(area.value, error.pointer);
  const select = () => {
    area.focus();
    area.setSelectionRange(place[0], place[1]);
    area.scrollTop = (place[2] - 3) * parseFloat(getComputedStyle(area).lineHeight);
  };
  return h("li", {}, h("code", {}, error.pointer || "/"), ` ${error.detail} `, place === null ? null : h("button", { type: "button", class: "link", onclick: select }, `Line ${place[2]}`));
}

// Show the errors of a job next to the fields or lines that they are about.

import { fill, h } from "./dom.js";

/** Show errors below their fields. `inputs` maps JSON pointers to fields. An error belongs to the field whose pointer its own begins with. */
export function mark(inputs, errors) {
  for (const [pointer, input] of Object.entries(inputs)) {
    const mine = errors.filter((one) => one.pointer === pointer || one.pointer.startsWith(`${pointer}/`));
    const place = input.parentElement.querySelector(".fault") ?? input.parentElement.appendChild(h("span", { class: "fault", id: `${input.id}-fault` }));
    fill(place, mine.map((one) => one.detail).join(" "));
    if (mine.length) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    if (mine.length) input.setAttribute("aria-describedby", place.id);
    else input.removeAttribute("aria-describedby");
  }
}

/** Find the deepest part of a JSON pointer that exists in a YAML or JSON text. Return its place as `[begin, end, line]`, or null. */
export function placeOf(source, pointer) {
  let from = 0, found = null;
  for (const part of pointer.split("/").slice(1)) {
    const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
    const hit = new RegExp(`(^|[\\s{,])(["']?)${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}\\2\\s*:`, "gm");
    hit.lastIndex = from;
    const match = hit.exec(source);
    if (match === null) break;
    const begin = match.index + match[1].length;
    found = [begin, match.index + match[0].length - 1, source.slice(0, begin).split("\n").length];
    from = match.index + match[0].length;
  }
  return found;
}

/** Create the display of an error, with a link to its line in `area`. */
export function located(area, one) {
  const place = placeOf(area.value, one.pointer);
  const go = () => {
    area.focus();
    area.setSelectionRange(place[0], place[1]);
    area.scrollTop = (place[2] - 3) * parseFloat(getComputedStyle(area).lineHeight);
  };
  return h("li", {}, h("code", {}, one.pointer || "/"), ` ${one.detail} `, place === null ? null : h("button", { type: "button", class: "link", onclick: go }, `Line ${place[2]}`));
}

// Create and update elements of the page.

/** Create an element. `props` are its attributes. Those named `on…` are event listeners. The value true gives an empty attribute; null and
 * false give none. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Replace the content of an element. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Set the text of an element if it differs, so that unchanged text is not redrawn or read out again by screen readers. */
export function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

/** Create a table with a caption for screen readers. `rows` are lists of cells. */
export function table(caption, heads, rows, { numeric = [] } = {}) {
  const cell = (value, index, tag, props = {}) =>
    h(tag, { ...props, class: numeric.includes(index) ? "number" : null }, value);
  return h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": caption },
    h("table", {},
      h("caption", { class: "visually-hidden" }, caption),
      h("thead", {}, h("tr", {}, heads.map((head, index) => cell(head, index, "th", { scope: "col" })))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, index) =>
        cell(value, index, index === 0 ? "th" : "td", index === 0 ? { scope: "row" } : {})))))));
}

/** Update the children of `parent` to match `items`. The element of an item is reused, so that the focus stays where it is. */
export function keyed(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let node = old.get(name);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = name;
    }
    old.delete(name);
    update(node, item);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  for (const node of old.values()) node.remove();
  if (focused !== null && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** Save content that was downloaded with the key to a file. */
export function save(content, name) {
  const url = URL.createObjectURL(content);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Announce a text to screen readers, and show it for some seconds. */
export function showMessage(words) {
  const place = document.getElementById("message");
  place.textContent = words;
  clearTimeout(place.timer);
  place.timer = setTimeout(() => { place.textContent = ""; }, 8000);
}

/** Announce a text to screen readers only. */
export function announce(words) {
  text(document.getElementById("announcement"), words);
}

/** Create a note that something is being loaded. */
export function loading(words = "Loading…") {
  return h("p", { class: "loading soft", role: "status" }, words);
}

/** Create the display of an error, with what to do about it. */
export function problem(error) {
  return h("div", { class: "problem", role: "alert" },
    h("strong", {}, error.title ?? "The page has an error"),
    error.errors?.length ? h("ul", {}, error.errors.map(({ pointer, detail }) => h("li", {}, h("code", {}, pointer || "/"), ` ${detail}`))) : h("p", {}, error.detail ?? String(error)));
}

/** Create the display of warnings. Return null if there are none. */
export function warningList(warnings) {
  return warnings.length ? h("div", { class: "warning" }, h("strong", {}, "Warnings"), h("ul", {}, warnings.map((words) => h("li", {}, words)))) : null;
}

/** Return a function that calls `act` soon, but at most once every `ms` milliseconds, however often it is called itself. */
export function atMost(ms, act) {
  let timer = null, last = -Infinity;
  const schedule = () => {
    if (timer !== null) return;
    timer = setTimeout(() => { timer = null; last = performance.now(); act(); }, Math.max(0, last + ms - performance.now()));
  };
  schedule.stop = () => { clearTimeout(timer); timer = null; };
  return schedule;
}

// Elements made and kept in place.

/** An element. `props`: attributes; `on…` functions listen; true is an empty attribute, null and false none. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Puts other content in place of what is there. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Sets text only where it is another, so that nothing is read out or drawn again for nothing. */
export function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

/** A table with a caption for those who do not see it. `rows` are lists of cells. */
export function table(caption, heads, rows, { numeric = [] } = {}) {
  const cell = (value, index, tag, props = {}) =>
    h(tag, { ...props, class: numeric.includes(index) ? "number" : null }, value);
  return h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": caption },
    h("table", {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, heads.map((head, index) => cell(head, index, "th", { scope: "col" })))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, index) =>
        cell(value, index, index === 0 ? "th" : "td", index === 0 ? { scope: "row" } : {})))))));
}

/** Keeps the children of `parent` in step with `items`: elements stay who they are, and the focus stays where it is. */
export function keyed(parent, items, key, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let node = before.get(name);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = name;
    }
    before.delete(name);
    update(node, item);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const node of before.values()) node.remove();
  if (focused !== null && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** Says something to who listens, and shows it for a while. */
export function say(words) {
  const place = document.getElementById("said");
  place.textContent = words;
  clearTimeout(place.timer);
  place.timer = setTimeout(() => { place.textContent = ""; }, 8000);
}

/** Says something to who listens only. */
export function announce(words) {
  text(document.getElementById("heard"), words);
}

/** A sign that something is on its way. */
export function loading(words = "Loading…") {
  return h("p", { class: "loading soft", role: "status" }, words);
}

/** A problem as it was answered, with what to do. */
export function problem(error) {
  return h("div", { class: "problem", role: "alert" },
    h("strong", {}, error.title ?? "The page has an error"),
    error.errors?.length ? h("ul", {}, error.errors.map((one) => h("li", {}, h("code", {}, one.pointer || "/"), ` ${one.detail}`))) : h("p", {}, error.detail ?? String(error)));
}

/** Calls `act` soon, and no more often than every `ms`, however often it is asked. */
export function atMost(ms, act) {
  let timer = null, last = -Infinity;
  const asked = () => {
    if (timer !== null) return;
    timer = setTimeout(() => { timer = null; last = performance.now(); act(); }, Math.max(0, last + ms - performance.now()));
  };
  asked.stop = () => { clearTimeout(timer); timer = null; };
  return asked;
}

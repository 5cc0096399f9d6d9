// Modal dialogs. The browser keeps the focus inside and restores it afterwards. Leaving the view closes them.

import { h } from "./dom.js";

/** Open a dialog with `content` below its heading. `close` is the label of a button next to the heading; null for no button. */
export function openDialog(title, content, { close = null, wide = false } = {}) {
  const heading = h("h2", { id: `dialog-${(openDialog.count = (openDialog.count ?? 0) + 1)}` }, title);
  const leave = () => dialog.close();
  const dialog = h("dialog", { "aria-labelledby": heading.id, class: wide ? "wide-dialog" : null, onclose: () => { removeEventListener("hashchange", leave); dialog.remove(); } },
    close === null ? heading
      : h("div", { class: "dialog-head" }, heading, h("button", { type: "button", class: "quiet", autofocus: true, onclick: leave }, close)),
    content);
  addEventListener("hashchange", leave);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Open a dialog with a form. Its button is labelled `words` and disabled while `act` runs. The dialog closes if `act` returns true. */
export function askForm(title, content, words, act, name = "") {
  const button = h("button", { class: name }, words);
  const dialog = openDialog(title, h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      if (button.disabled) return;
      button.disabled = true;
      if (await act()) dialog.close();
      button.disabled = false;
    },
  }, content, h("div", { class: "actions" }, button, h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Not now"))));
  return { dialog, button };
}

// Keys of a page, and the list of them.

const keys = new Map();
const screens = {};

// key: as `KeyboardEvent.key`; without `run` it is only listed.
function bind(key, says, run) {
  keys.set(key, {says, run});
}

function showKeys() {
  const dialog = make("dialog", {class: "keys", "aria-label": "Keys"},
    make("h2", {}, "Keys"),
    make("dl", {}, [...keys].map(([key, {says}]) => make("div", {}, make("dt", {}, make("kbd", {}, key)), make("dd", {}, says)))),
    make("form", {method: "dialog"}, make("button", {class: "button"}, "close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.target instanceof Element)) return;
  if (event.key === "Escape") {
    hideTip();
    if (event.target.matches("input, select, textarea")) event.target.blur();
    return;
  }
  if (event.target.matches("input:not([type=checkbox]), select, textarea") || document.querySelector("dialog[open]")) return;
  const found = keys.get(event.key);
  if (!found || !found.run) return;
  event.preventDefault();
  found.run();
});

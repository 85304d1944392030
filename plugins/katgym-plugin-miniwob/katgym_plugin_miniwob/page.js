// Shows a page as text and finds what a text names. Runs in every page before its own scripts.
// Elements keep their number for the whole episode.
window.katgym = {
  start(seed) {
    katgym.numbers = new Map();
    if (window.jQuery) {
      jQuery.fx.off = true;
      if (jQuery.ui && jQuery.ui.autocomplete) jQuery.ui.autocomplete.prototype.options.delay = 0;
    }
    document.activeElement.blur();
    Math.seedrandom(seed);
    core.EPISODE_MAX_TIME = 2 ** 31 - 1;
    core.startEpisodeReal();
  },
  async settle() {
    for (let i = 0; i < 100 && !WOB_TASK_READY; i++) await new Promise((r) => setTimeout(r, 20));
    await new Promise((r) => setTimeout(r, 20));
    return { done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL };
  },
  number(element) {
    if (!katgym.numbers.has(element)) katgym.numbers.set(element, katgym.numbers.size + 1);
    return katgym.numbers.get(element);
  },
  find(number) {
    for (const [element, own] of katgym.numbers) if (own === number) return element;
    return null;
  },
  point(number) {
    const element = katgym.find(number);
    if (!element || !element.isConnected) return null;
    element.scrollIntoView({ block: "center", inline: "center" });
    const box = element.getBoundingClientRect();
    for (const [right, down] of [[0.5, 0.5], [0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.9]]) {
      const point = [box.x + box.width * right, box.y + box.height * down];
      const hit = document.elementFromPoint(...point);
      if (hit && (element.contains(hit) || hit.contains(element))) return point;
    }
    return null; // something else covers it
  },
  clear(number) {
    const element = katgym.find(number);
    if (!element || !element.isConnected) return false;
    element.focus();
    if (element.select) element.select();
    return document.activeElement === element;
  },
  typed(number) {
    const element = katgym.find(number);
    for (const kind of ["keyup", "change"]) element.dispatchEvent(new Event(kind, { bubbles: true }));
    return true;
  },
  choose(number, text) {
    const element = katgym.find(number);
    const options = element && element.options ? [...element.options] : [];
    const found = options.find((option) => option.text.trim() === text.trim());
    if (!found) return false;
    element.value = found.value;
    for (const kind of ["input", "change"]) element.dispatchEvent(new Event(kind, { bubbles: true }));
    return true;
  },
  elements() {
    const found = [];
    const hidden = ["SCRIPT", "STYLE", "OPTION"];
    const skipped = ["reward-display", "sync-task-cover", "click-canvas", "query"];
    const visit = (element) => {
      if (hidden.includes(element.tagName) || skipped.includes(element.id)) return;
      const style = getComputedStyle(element);
      if (style.display === "none" || style.visibility === "hidden") return;
      const tag = element.tagName.toLowerCase();
      const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
      const text = texts.map((node) => node.data).join(" ").replace(/\s+/g, " ").trim();
      const isField = ["input", "textarea", "select", "button", "a"].includes(tag);
      if (isField || (text && element.getBoundingClientRect().width)) {
        const item = { ref: katgym.number(element), tag, text };
        if (element.type && tag === "input") item.type = element.type;
        if (isField && tag !== "a" && element.value) item.value = element.value;
        if (element.checked) item.checked = true;
        if (element === document.activeElement) item.focused = true;
        if (tag === "select") item.options = [...element.options].map((option) => option.text);
        found.push(item);
      }
      for (const child of element.children) visit(child);
    };
    visit(document.body);
    return { query: document.getElementById("query").innerText.trim(), elements: found };
  },
};

// Begins a page: its screen draws what is not in the page's text.

bind("?", "these keys", showKeys);
document.body.append(make("button", {type: "button", class: "keys-button", "aria-label": "Keys of this page", onclick: showKeys}, make("kbd", {}, "?"), " keys"));
Promise.resolve(screens[document.body.dataset.screen]()).then(
  () => { document.body.dataset.isReady = "1"; },
  (error) => {
    document.querySelector("main").append(notes([`This cannot be shown: ${error.message}. It may be gone; reload the page it was linked from.`]));
    document.body.dataset.isReady = "1";
    if (!/cannot be (loaded|read)/.test(error.message)) throw error;
  },
);

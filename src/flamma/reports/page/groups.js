"use strict";
// Groups: parts of the page that are hidden and shown together, such as a family of strategies. What
// belongs to one says so by data-group; what is hidden stays so while the page is open.
const Groups = (() => {
  const hidden = new Set();
  let titles = {};

  function apply(root = document) {
    for (const node of root.querySelectorAll("[data-group]")) {
      node.hidden = hidden.has(node.dataset.group);
    }
  }

  // A bar of buttons, one for each group and one for all; empty if there are none.
  function bar(groups, changed) {
    titles = groups;
    const names = Object.keys(groups);
    if (!names.length) return make("div", { id: "groups" });
    const buttons = new Map();
    const show = () => {
      for (const [name, button] of buttons) {
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
      }
      apply();
      changed();
    };
    for (const name of names) {
      buttons.set(name, make("button", { type: "button", title: groups[name],
        "aria-pressed": String(!hidden.has(name)), onclick() {
          if (!hidden.delete(name)) hidden.add(name);
          show();
        } }, name));
    }
    const all = make("button", { type: "button", onclick() {
      if (names.some((name) => hidden.has(name))) hidden.clear();
      else names.forEach((name) => hidden.add(name));
      show();
    } }, "all / none");
    return make("div", { id: "groups", class: "groups", role: "group",
      "aria-label": "families: show or hide" }, make("span", {}, "Families"), ...buttons.values(), all);
  }

  return { hidden, bar, apply, title: (name) => titles[name] ?? name };
})();

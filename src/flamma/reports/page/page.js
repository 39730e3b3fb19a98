"use strict";
// The page: a document of plain data becomes nodes. When new data come (the live page), what has the
// same shape is updated in place, so that zooms, choices and the keyboard's focus stay.
const Page = (() => {
  const html = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let cards = []; // every chart, in the order of the page
  let updaters = [];
  let legends = []; // what fills each legend anew, in the colours of the theme
  let shape = "";
  let drawing = Promise.resolve();

  function setTheme(name) {
    html.dataset.theme = name;
    legends.forEach((fill) => fill());
    return redraw();
  }

  function redraw() {
    html.dataset.ready = "no";
    drawing = drawing.then(async () => {
      for (const card of cards) {
        await card.draw();
        await new Promise((done) => setTimeout(done)); // the page stays responsive
      }
      html.dataset.ready = "yes";
    });
    return drawing;
  }

  const makers = {
    charts(item) {
      const names = item.charts.map((chart) => JSON.stringify([...seriesOf(chart).keys()]));
      const shared = names.length > 1 && names.every((name) => name === names[0]);
      const hidden = shared ? new Set() : null;
      const own = item.charts.map((chart) => new ChartCard(chart, hidden));
      cards.push(...own);
      const legend = shared ? legendPlace() : "";
      const place = make("div", { class: "group" },
        item.lead ? make("p", { class: "lead" }, item.lead) : "", legend,
        make("div", { class: item.small ? "charts small" : "charts" }, ...own.map((card) => card.node)));
      const fill = () => {
        if (shared) fillLegend(legend, own, hidden);
        else own.forEach((card) => card.fillLegend());
      };
      fill();
      legends.push(fill);
      return [place, (next) => {
        own.forEach((card, k) => card.take(next.charts[k]));
        fill();
      }];
    },
    table: (item) => replaceable(item, makeTable),
    facts: (item) => replaceable(item, makeFacts),
    code: (item) => [makeCode(item), () => {}],
    explorer(item) {
      const explorer = new GameExplorer(item.games);
      cards.push(...explorer.cards);
      return [explorer.node, (next) => explorer.offer(next.games)];
    },
  };

  function replaceable(item, maker) {
    let node = maker(item);
    return [node, (next) => {
      const fresh = maker(next);
      node.replaceWith(fresh);
      node = fresh;
    }];
  }

  function makeTable(item) {
    const cells = (row) => row.map((cell, k) => {
      const value = typeof cell === "string" ? { text: cell } : cell;
      const tag = k === 0 ? "th" : "td";
      const node = make(tag, { class: value.mark || false, scope: k === 0 ? "row" : false,
        "data-value": value.value ?? false, "data-spread": value.spread ?? false },
      make("span", { class: "text" }, value.text));
      if (value.mark) node.title = value.mark === "best" ? "the best alone" : "best, or not significantly different from it";
      if (value.note) node.append(make("span", { class: "note" }, value.note));
      return node;
    });
    const line = (row) => make("tr", {}, ...cells(row));
    const bodies = item.groups?.length ? groupedBodies(item, line)
      : [make("tbody", {}, ...item.rows.map(line))];
    const words = item.rows.every((row) => row.every((cell) => typeof cell === "string"));
    return make("div", { class: "card", "data-table": item.name },
      sideways({ class: "scroll", "aria-label": item.caption },
        make("table", { class: words ? "words" : bodies.length > 1 ? "grouped" : false },
          make("caption", {}, item.caption),
          make("thead", {}, make("tr", {}, ...item.header.map((h) => make("th", { scope: "col" }, h)))),
          ...bodies)),
      ...item.notes.map((note) => make("p", { class: "table-note" }, note)));
  }

  // One body for every group, under a row with its title.
  function groupedBodies(item, line) {
    const groups = [...new Set(item.groups)];
    return groups.map((group) => make("tbody", { "data-group": group },
      make("tr", { class: "group" },
        make("th", { scope: "rowgroup", colspan: item.header.length },
          make("span", { class: "text" }, Groups.title(group)))),
      ...item.rows.filter((_, k) => item.groups[k] === group).map(line)));
  }

  function makeFacts(item) {
    return make("dl", { class: "facts" }, ...item.facts.map(([label, value, note]) =>
      make("div", { class: "fact" }, make("dt", {}, label),
        make("dd", { class: "value" }, value), make("dd", { class: "note" }, note))));
  }

  function makeCode(item) {
    const copy = make("button", { type: "button", onclick: () => copyText(item.text, copy) }, "copy");
    const text = make("pre", { tabindex: "0" }, item.text);
    if (item.folded) {
      return make("details", { class: "card" }, make("summary", {}, item.label), copy, text);
    }
    return make("div", { class: "card" },
      make("div", { class: "code-head" }, make("h3", {}, item.label), copy), text);
  }

  async function copyText(text, button) {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "select and copy by hand";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  }

  function makeHeader(item) {
    const toggle = make("button", { type: "button", id: "theme",
      onclick: () => setTheme(html.dataset.theme === "dark" ? "light" : "dark") }, "light / dark");
    return make("header", {}, make("div", {}, make("h1", {}, item.title),
      make("p", { class: "subtitle" }, item.subtitle)),
    make("div", {}, make("span", { class: "live", id: "live", role: "status" }), " ", toggle));
  }

  // How far an unfinished run is, and how long it will take at its pace.
  function makeProgress({ progress }) {
    if (!progress) return make("div", { id: "progress" });
    const { done, of, text, seconds_left: left } = progress;
    const soon = left === null || html.dataset.live !== "yes" ? "" : `, about ${duration(left)} left`;
    return make("div", { id: "progress", class: "progress",
      "data-pace": left === null ? false : left / Math.max(1, of - done) },
      make("progress", { max: of, value: done, "aria-label": text }), make("span", {}, text, soon));
  }

  function makeNotices(item) {
    if (!item.notices.length) return make("div", { id: "notices" });
    return make("div", { id: "notices", class: "notices", role: "note" },
      make("strong", {}, "What is missing here"),
      make("ul", {}, ...item.notices.map((text) => make("li", {}, text))));
  }

  function render(item) {
    const found = JSON.stringify(item.sections.map((section) => [section.name, section.items.map(
      (part) => [part.kind, ...(part.charts ?? []).map((chart) => chart.name)])]));
    document.title = item.title;
    takeLooks(item);
    if (found === shape) update(item);
    else build(item);
    Groups.apply();
    shape = found;
    return redraw();
  }

  function build(item) {
    cards.forEach((card) => Plotly.purge(card.plot));
    cards = [];
    updaters = [];
    legends = [];
    const bar = Groups.bar(item.groups ?? {}, redraw); // before the tables, which ask for titles
    const sections = item.sections.map((section) => {
      const made = section.items.map((part) => makers[part.kind](part));
      updaters.push(made.map(([, renew]) => renew));
      return make("section", { id: section.name, "aria-labelledby": `heading-${section.name}` },
        make("h2", { id: `heading-${section.name}` }, section.title),
        make("p", { class: "lead" }, section.lead), ...made.map(([node]) => node));
    });
    const place = document.getElementById("page");
    place.replaceChildren(makeHeader(item), makeProgress(item), makeNotices(item), makeFacts(item.facts),
      make("nav", { "aria-label": "sections" },
        ...item.sections.map((s) => make("a", { href: `#${s.name}` }, s.title))), bar,
      make("main", { id: "main", tabindex: "-1" }, ...sections),
      make("footer", {}, item.footer));
  }

  function update(item) {
    const place = document.getElementById("page");
    place.querySelector("h1").textContent = item.title;
    place.querySelector(".subtitle").textContent = item.subtitle;
    place.querySelector("#progress").replaceWith(makeProgress(item));
    place.querySelector("#notices").replaceWith(makeNotices(item));
    place.querySelector(":scope > .facts").replaceWith(makeFacts(item.facts));
    item.sections.forEach((section, k) => section.items.forEach((part, i) => updaters[k][i](part)));
  }

  function printed() { // paper is white, and as wide as it is
    let before = "light";
    addEventListener("beforeprint", () => {
      before = html.dataset.theme;
      html.dataset.theme = "light";
      cards.filter((card) => !card.node.hidden).forEach((card) => {
        const { data, layout } = card.figure("light");
        if (data.length) Plotly.react(card.plot, data, { ...layout, width: 640 }, CONFIG);
      });
    });
    addEventListener("afterprint", async () => {
      await setTheme(before);
      cards.forEach((card) => card.plot.data && Plotly.Plots.resize(card.plot));
    });
  }

  function start() {
    html.dataset.theme = dark.matches ? "dark" : "light";
    dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
    printed();
    return render(JSON.parse(document.getElementById("data").textContent));
  }

  return { render, start };
})();

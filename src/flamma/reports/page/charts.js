"use strict";
// Charts: a view of plain traces becomes a plotly figure in the colours of the theme, with a legend
// of buttons, its data as CSV and itself as PNG or SVG.
// Scales go from dark to bright, and from red through yellow to blue: all are safe for colour-blind
// eyes. Where cells may be empty, "signed" is used, whose middle stands out against them.
const THEMES = {
  light: {
    ink: "#1a1d21", soft: "#5a626c", grid: "#e6e9ed", axis: "#aab2bb", empty: "#f2f4f7",
    paper: "#ffffff",
    scales: {
      sequential: [[0, "#00224e"], [0.25, "#3b496c"], [0.5, "#7a7a78"], [0.75, "#a99852"],
        [1, "#d4ae00"]],
      diverging: [[0, "#a50026"], [0.25, "#f46d43"], [0.5, "#ffffbf"], [0.75, "#74add1"],
        [1, "#313695"]],
      signed: [[0, "#8c0d25"], [0.25, "#c2452d"], [0.5, "#9a7400"], [0.75, "#2a7f9e"],
        [1, "#1f3a93"]],
    },
  },
  dark: {
    ink: "#e8eaed", soft: "#a2abb6", grid: "#2d343d", axis: "#56606c", empty: "#161a1f",
    paper: "#1b1f25",
    scales: {
      sequential: [[0, "#40598f"], [0.25, "#5f6f8d"], [0.5, "#8a8a88"], [0.75, "#c0b372"],
        [1, "#fde737"]],
      diverging: [[0, "#a50026"], [0.25, "#f46d43"], [0.5, "#ffffbf"], [0.75, "#74add1"],
        [1, "#313695"]],
      signed: [[0, "#e0524d"], [0.25, "#f0a060"], [0.5, "#f5e6a0"], [0.75, "#86c5d8"],
        [1, "#5c9dff"]],
    },
  },
};
// The palette comes with the document: the looks of numbered series, and of strategies by name.
const Looks = { palette: { series: [], dashes: [], shapes: [] }, strategies: new Map() };
function takeLooks(item) {
  Looks.palette = item.palette;
  Looks.strategies = new Map(Object.entries(item.looks));
}
function lookOf(trace) {
  const { series } = Looks.palette;
  const own = trace.series ?? 0;
  return Looks.strategies.get(own) ?? series[(Number(own) || 0) % series.length];
}
const colourOf = (trace) => lookOf(trace)[themeName()];
const dashOf = (trace) => Looks.palette.dashes[trace.quiet ? 3 : lookOf(trace).dash];
const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"],
};

// A node with attributes and children; text is text, whatever it holds.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== "" && child !== undefined));
  return node;
}

// A place that scrolls sideways if its content is wide, says so, and shows at which side there is more.
function sideways(attributes, ...children) {
  const place = make("div", { tabindex: "0", role: "region", ...attributes }, ...children);
  const frame = make("div", { class: "sideways" }, place,
    make("p", { class: "cue", "aria-hidden": "true" }, "scroll sideways for more columns →"));
  const look = () => {
    const rest = place.scrollWidth - place.clientWidth - place.scrollLeft;
    frame.classList.toggle("wide", place.scrollWidth > place.clientWidth + 1);
    frame.classList.toggle("before", place.scrollLeft > 1);
    frame.classList.toggle("after", rest > 1);
  };
  place.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(place);
  return frame;
}

// plotly reads a little markup in titles and names; here text is text.
const plain = (text) =>
  String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const plainName = (value) => (typeof value === "string" ? plain(value) : value);
const themeName = () => document.documentElement.dataset.theme;
const faded = (colour, share) =>
  `${colour}${Math.round(share * 255).toString(16).padStart(2, "0")}`;
const groupOf = (trace) => trace.of ?? trace.name;

const symbolOf = (trace) => Looks.palette.shapes[trace.shape ?? lookOf(trace).dash];

function styled(trace, name, hidden) {
  const { series = 0, of, band, small, quiet, scale, group, thin, shape, faint, unlisted, ...own } =
    trace;
  const theme = THEMES[name];
  const colour = lookOf(trace)[name];
  const figure = { ...own, name: plain(trace.name ?? ""), visible: !hidden.has(groupOf(trace)) && !Groups.hidden.has(group) };
  for (const side of ["x", "y"]) if (own[side]) figure[side] = own[side].map(plainName);
  if (trace.type === "heatmap") {
    const bar = { thickness: 10, outlinewidth: 0, tickfont: { color: theme.soft, size: 11 } };
    bar.title = { text: trace.name, side: "right", font: { color: theme.soft, size: 11 } };
    const gap = trace.x.length <= 80 && trace.y.length <= 40 ? 1 : 0;
    let hover = "%{yaxis.title.text} %{y}, %{xaxis.title.text} %{x}<br>%{z}<extra></extra>";
    if (own.text) { // numbers in the cells, for print and for eyes that do not go by colour
      figure.text = own.text.map((row) => row.map(plain));
      figure.hovertext = own.hovertext.map((row) => row.map(plain));
      figure.texttemplate = "%{text}";
      hover = "%{y}, %{x}<br>%{hovertext}<extra></extra>";
    }
    return { ...figure, colorscale: theme.scales[scale], colorbar: bar, xgap: gap, ygap: gap,
      hoverongaps: false, hovertemplate: hover };
  }
  if (trace.type === "bar") {
    const marker = { color: colour };
    if (own.x.length <= 60) { // hundreds of patterned bars take long to draw, and show none
      const shape = ["", "/", "x", "."][series % 4];
      marker.pattern = { shape, fillmode: "overlay", fgcolor: theme.paper, solidity: 0.25 };
    }
    return { ...figure, marker };
  }
  if (trace.type === "box") {
    return { ...figure, boxpoints: "all", jitter: 0.5, pointpos: 0, fillcolor: faded(colour, 0.25),
      line: { color: colour, width: 1.5 },
      marker: { color: colour, size: 4, opacity: 0.45, symbol: symbolOf(trace) } };
  }
  if (band) {
    return { ...figure, line: { width: 0, color: colour }, fillcolor: faded(colour, 0.13) };
  }
  const error = { color: colour, thickness: 1.5, width: 4 };
  for (const side of ["error_x", "error_y"]) {
    if (figure[side]) figure[side] = { ...figure[side], ...error };
  }
  figure.line = { color: colour, width: quiet || thin ? 1.5 : 2.2,
    dash: dashOf(trace).map((pixels) => `${pixels}px`).join(",") || "solid", ...(own.line ?? {}) };
  const alone = own.mode === "lines" && own.y.filter((value) => value !== null).length < 3;
  if (alone) figure.mode = "lines+markers"; // one round is no line yet
  const size = small || alone ? 5 : quiet ? 4 : faint ? 8 : 11;
  figure.marker = { color: colour, size, opacity: small ? 0.5 : faint ? 0.35 : 1,
    symbol: symbolOf(trace), ...(own.marker ?? {}) };
  if (own.text) {
    figure.text = own.text.map(plain);
    figure.textfont = { size: 11.5, color: theme.ink };
    figure.cliponaxis = false; // a name may reach over the edge
  }
  return figure;
}

function laidOut(view, theme) {
  const axis = (own = {}) => ({
    gridcolor: theme.grid, linecolor: theme.axis, zerolinecolor: theme.grid, showline: true,
    tickcolor: theme.axis, automargin: true, ...own,
    title: { text: own.title ?? "", font: { size: 12.5 }, standoff: 8 },
  });
  const isMap = view.traces.some((trace) => trace.type === "heatmap");
  const { xaxis, yaxis, ...rest } = view.layout;
  return {
    ...rest,
    xaxis: { ...axis(xaxis), ...(isMap ? { showgrid: false } : {}) },
    yaxis: { ...axis(yaxis), ...(isMap ? { showgrid: false } : {}) },
    font: { family: "system-ui, sans-serif", size: 12, color: theme.ink },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: isMap ? theme.empty : "rgba(0,0,0,0)",
    margin: { l: 10, r: 10, t: 12, b: 10 },
    autosize: true,
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { font: { size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.soft, activecolor: theme.ink },
  };
}

// A chart card: what it shows can be replaced, drawn anew, and taken along.
class ChartCard {
  static made = 0;

  constructor(chart, hidden = null) {
    const id = `chart-${ChartCard.made++}`; // a name may hold anything
    this.hidden = hidden ?? new Set(); // shared by a group with one legend
    this.legend = hidden ? null : legendPlace();
    this.view = 0;
    this.plot = make("div", { class: "plot" });
    this.title = make("h3", { id });
    this.caption = make("figcaption");
    this.views = make("div", { class: "views", role: "group", "aria-label": "what is shown" });
    const tool = (text, label, act) =>
      make("button", { type: "button", onclick: act, title: label, "aria-label": label }, text);
    this.tools = make("div", { class: "tools" },
      tool("data", `Download the data of “${chart.title}” as CSV`, () => this.saveData()),
      tool("PNG", `Download “${chart.title}” as PNG`, () => this.saveImage("png")),
      tool("SVG", `Download “${chart.title}” as SVG`, () => this.saveImage("svg")));
    this.node = make("figure", { class: "card chart", "data-chart": chart.name,
      "data-group": chart.group || false,
      "aria-labelledby": id },
    make("div", { class: "chart-head" }, this.title, this.tools), this.views, this.legend ?? "",
    this.plot, this.caption);
    this.take(chart);
  }

  take(chart) {
    this.chart = chart;
    this.title.textContent = chart.title;
    this.caption.textContent = chart.aid;
    this.plot.style.height = `${chart.height ?? 340}px`;
    this.view = Math.min(this.view, chart.views.length - 1);
    this.fillLegend();
    if (chart.views.length < 2 || this.views.childElementCount === chart.views.length) return;
    this.views.replaceChildren(...chart.views.map((view, k) =>
      make("button", { type: "button", "aria-pressed": String(k === this.view),
        onclick: () => this.show(k) }, view.label)));
  }

  fillLegend() {
    if (this.legend) fillLegend(this.legend, [this], this.hidden);
  }

  show(k) {
    this.view = k;
    [...this.views.children].forEach((button, index) =>
      button.setAttribute("aria-pressed", String(index === k)));
    this.fillLegend();
    return this.draw();
  }

  figure(name = themeName()) {
    const view = this.chart.views[this.view];
    const theme = THEMES[name];
    const layout = laidOut(view, theme);
    layout.uirevision = `view ${this.view}`; // a zoom survives new data
    return { data: view.traces.map((trace) => styled(trace, name, this.hidden)), layout };
  }

  async draw() {
    if (this.node.hidden) return; // it has no size; it is drawn when it is shown
    const { data, layout } = this.figure();
    if (!data.length) {
      this.plot.replaceChildren(make("p", { class: "empty" }, "There is nothing to draw yet."));
      return;
    }
    if (this.plot.querySelector(".empty")) this.plot.replaceChildren();
    try {
      await Plotly.react(this.plot, data, layout, CONFIG);
    } catch (error) { // the other charts are drawn all the same
      console.error(error);
      this.plot.replaceChildren(make("p", { class: "empty" }, "This chart could not be drawn."));
    }
  }

  saveData() {
    const text = asCsv(this.chart.views[this.view]);
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
    save(url, `${this.chart.name}.csv`);
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  async saveImage(format) {
    const { data, layout } = this.figure("light");
    const named = { ...layout, paper_bgcolor: "#ffffff", showlegend: data.length > 1,
      legend: { orientation: "h", y: -0.2, traceorder: "normal" }, margin: { l: 70, r: 20, t: 60, b: 60 },
      title: { text: plain(this.chart.title), x: 0.02, font: { size: 17 } } };
    const shown = data.map((trace, k) => ({ ...trace,
      showlegend: isListed(this.chart.views[this.view].traces[k]) }));
    const size = { format, width: 900, height: 520, scale: format === "png" ? 2 : 1 };
    save(await Plotly.toImage({ data: shown, layout: named }, size), `${this.chart.name}.${format}`);
  }
}

function save(url, name) {
  const link = make("a", { href: url, download: name.replace(/[^\w.-]+/g, "-") });
  document.body.append(link);
  link.click();
  link.remove();
}

// What a view draws, one line a mark. A text that a spreadsheet would take for a formula is quoted.
function asCsv(view) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const [x, y] = [view.layout.xaxis?.title || "x", view.layout.yaxis?.title || "y"];
  const rows = [];
  for (const trace of view.traces) {
    if (trace.type === "heatmap") {
      rows.push([y, x, trace.name]);
      trace.z.forEach((line, i) => line.forEach((value, k) => {
        if (value !== null) rows.push([trace.y[i], trace.x[k], value]);
      }));
      continue;
    }
    if (!rows.length) rows.push(["series", x, y, `± ${x}`, `± ${y}`]);
    trace.y.forEach((value, k) => {
      if (value === null) return;
      rows.push([trace.name, trace.x?.[k], value, trace.error_x?.array[k], trace.error_y?.array[k]]);
    });
  }
  return `${rows.map((row) => row.map(cell).join(",")).join("\n")}\n`;
}

const isListed = (trace) => !trace.of && !trace.unlisted;

// The series of a chart that a legend names: not its bands, nor what a heat map's scale tells.
function seriesOf(chart, view = null) {
  const entries = new Map();
  const views = view === null ? chart.views : [chart.views[view]];
  for (const trace of views.flatMap((shown) => shown.traces)) {
    if (trace.type !== "heatmap" && isListed(trace) && trace.name) entries.set(trace.name, trace);
  }
  return entries;
}

// Buttons that show or hide a series in all these charts; none for a single series.
function fillLegend(place, cards, hidden) {
  const focused = [...place.children].indexOf(document.activeElement);
  const entries = new Map(cards.flatMap((card) =>
    [...seriesOf(card.chart, cards.length > 1 ? null : card.view)]));
  const buttons = [...entries].map(([name, trace]) =>
    make("button", { type: "button", "aria-pressed": String(!hidden.has(name)), onclick(event) {
      if (!hidden.delete(name)) hidden.add(name);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(name)));
      cards.forEach((card) => card.draw());
    } }, swatch(trace), name));
  place.replaceChildren(...(buttons.length > 1 ? buttons : []));
  place.children[focused]?.focus();
}

const legendPlace = () =>
  make("div", { class: "legend", role: "group", "aria-label": "legend: show or hide a series" });

function swatch(trace) {
  const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const colour = colourOf(trace);
  const parts = [];
  if (trace.type === "bar" || trace.type === "box") {
    parts.push(svg("rect", { x: 9, y: 1, width: 12, height: 10, fill: colour }));
  } else {
    if (trace.mode !== "markers") {
      parts.push(svg("line", { x1: 0, y1: 6, x2: 30, y2: 6, stroke: colour, "stroke-width": 2.5,
        "stroke-dasharray": dashOf(trace).join(" ") }));
    }
    const points = { square: "10,1 20,1 20,11 10,11", diamond: "15,0 21,6 15,12 9,6",
      "triangle-up": "15,1 21,11 9,11", "triangle-down": "9,1 21,1 15,11",
      cross: "13,1 17,1 17,4 20,4 20,8 17,8 17,11 13,11 13,8 10,8 10,4 13,4",
      x: "10,2 12,1 15,4 18,1 20,2 17,6 20,10 18,11 15,8 12,11 10,10 13,6",
      star: "15,0 16.5,4.5 21,4.5 17.5,7 19,12 15,9 11,12 12.5,7 9,4.5 13.5,4.5",
      pentagon: "15,0 21,4.5 19,12 11,12 9,4.5", hourglass: "10,1 20,1 10,11 20,11" };
    const shape = trace.marker?.symbol ?? symbolOf(trace);
    if (trace.mode !== "lines" && !trace.quiet) {
      parts.push(points[shape] ? svg("polygon", { points: points[shape], fill: colour })
        : svg("circle", { cx: 15, cy: 6, r: 5, fill: colour }));
    }
  }
  return svg("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" }, ...parts);
}

// A time as people say it.
function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

"use strict";
// The game explorer: sliders change a game, and the equilibrium moves with them.
const narrow = matchMedia("(max-width: 820px)");

class GameExplorer {
  constructor(games) {
    this.node = make("div", { class: "explorer", "data-explorer": "" });
    this.outputs = {};
    this.cards = [this.leaderCard(), this.responseCard(), this.reportCard()].map((chart) => new ChartCard(chart));
    this.values = make("dl", { class: "facts" });
    this.table = make("tbody");
    this.controls = make("div", { class: "card controls" });
    const head = ["client", "ω", "c", "epochs τ*", "utility"];
    const clients = make("div", { class: "card" }, sideways({ class: "clients",
      "aria-label": "the clients' best responses" },
    make("table", {}, make("thead", {}, make("tr", {}, ...head.map((h) => make("th", {}, h)))),
      this.table)));
    this.command = make("pre", { tabindex: "0", "data-command": "" });
    const same = make("div", { class: "card" },
      make("h3", {}, "The same game on the command line"), this.command);
    this.node.append(this.controls, make("div", {}, this.values,
      make("div", { class: "charts" }, ...this.cards.map((card) => card.node), clients, same)));
    this.offer(games);
    this.start(games.findIndex((game) => game.played < 0.95));
    narrow.addEventListener("change", () => this.place());
  }

  // Sliders stand in a column of their own; on a phone each group stands under the chart it moves.
  place() {
    const [rules, client, server] = this.groups;
    const under = (group, card) => card.plot.after(group);
    if (narrow.matches) {
      this.controls.replaceChildren();
      under(server, this.cards[0]);
      under(rules, this.cards[0]); // between the chart and what the server plays
      under(client, this.cards[2]);
    } else this.controls.replaceChildren(rules, client, server);
    this.controls.hidden = narrow.matches;
  }

  // Take new games to start from; what is being explored stays.
  offer(games) {
    this.games = games;
    const select = this.node.querySelector("select[name=game]");
    if (!select) return;
    select.replaceChildren(...games.map((game, k) => make("option", { value: k }, game.label)));
    select.selectedIndex = games.findIndex((game) => game.label === this.from.label);
  }

  start(index) {
    const chosen = Math.max(0, index);
    const from = this.games[chosen];
    this.from = from;
    this.game = { ...from, contributions: [...from.contributions], costs: [...from.costs],
      epochBounds: [from.epochBounds[0], from.epochBounds[1] ?? Infinity] };
    this.client = 0;
    this.reported = 1; // what the chosen client reports, as a multiple of its cost
    this.played = null; // the leader plays the equilibrium
    this.makeControls();
    this.compute();
  }

  makeControls() {
    const { from, game } = this;
    const choose = (name, label, options, chosen, act) => make("label", {}, label,
      make("select", { name, onchange: (event) => act(Number(event.target.value)) },
        ...options.map((text, k) => make("option", { value: k, selected: k === chosen }, text))));
    const slider = (name, label, range, value, act) => {
      const output = make("output", { name });
      const input = make("input", { type: "range", name, ...range, oninput: (event) => {
        act(Number(event.target.value));
        this.changed();
      } });
      input.value = value;
      this.outputs[name] = output;
      return make("label", {}, make("span", { class: "row" }, label, output), input);
    };
    const check = (name, label, on, act) => make("label", { class: "check" },
      make("input", { type: "checkbox", name, checked: on, onchange: (event) => {
        act(event.target.checked);
        this.changed();
      } }), label);
    const most = Number.isFinite(game.epochBounds[1]) ? Math.max(20, 2 * game.epochBounds[1]) : 40;
    const priceScale = Math.max(1, 4 * from.price) / 1000;
    const own = (kind) => from[kind][this.client];
    this.most = most;
    this.groups?.forEach((group) => group.remove());
    this.groups = [
      make("fieldset", { class: "sliders" }, make("legend", {}, "The rules"),
      choose("game", "Start from", this.games.map((g) => g.label),
        this.games.findIndex((g) => g.label === from.label),
        (k) => { this.start(k); this.redraw(); }),
      slider("round", "round t", { min: 1, max: Math.max(100, 2 * from.round), step: 1 },
        game.round, (value) => { game.round = value; }),
      slider("price", "price λ", { min: 0, max: 1000, step: 1 }, game.price / priceScale,
        (value) => { game.price = value * priceScale; }),
      slider("fewest", "fewest epochs", { min: 0, max: most, step: 1 }, game.epochBounds[0],
        (value) => { game.epochBounds = [value, Math.max(1, value, game.epochBounds[1])]; }),
      slider("most", "most epochs", { min: 1, max: most, step: 1 },
        Math.min(most, game.epochBounds[1]),
        (value) => { game.epochBounds = [Math.min(value, game.epochBounds[0]), value]; }),
      check("whole", "whole epochs only", game.wholeEpochs,
        (on) => { game.wholeEpochs = on; }),
      check("floor", "keep the run's lower bound of γ", true,
        (on) => { game.decayBounds = on ? [...from.decayBounds] : [0, 1]; })),
      make("fieldset", { class: "sliders" }, make("legend", {}, "One client"),
        choose("client", "which", game.clients, this.client,
          (k) => {
            this.client = k;
            this.reported = 1;
            this.makeControls();
            this.compute();
            this.redraw();
          }),
        slider("cost", "cost c", { min: -300, max: 300, step: 1 },
          Math.log10(game.costs[this.client] / own("costs")) * 200,
          (value) => { game.costs[this.client] = own("costs") * 10 ** (value / 200); }),
        slider("contribution", "contribution ω", { min: 0, max: 1000, step: 1 },
          game.contributions[this.client] * 1000,
          (value) => { game.contributions[this.client] = value / 1000; }),
        slider("report", "reported cost", { min: -400, max: 400, step: 1 },
          Math.log10(this.reported) * 200, (value) => { this.reported = 10 ** (value / 200); })),
      make("fieldset", { class: "sliders" }, make("legend", {}, "What the server plays"),
        slider("gamma", "decay factor γ", { min: 0, max: 1000, step: 1 }, 1000,
          (value) => { this.played = value / 1000; }),
        make("button", { type: "button", name: "equilibrium", onclick: () => {
          this.played = null;
          this.changed();
        } }, "play the equilibrium")),
    ];
    this.place();
    this.tell = (name, value) => {
      this.outputs[name].textContent = value;
    };
  }

  changed() {
    this.compute();
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      this.cards.forEach((card) => card.draw());
    });
  }

  compute() {
    const { game } = this;
    const [low, high] = game.decayBounds;
    const best = Solver.solve(game);
    const gamma = this.played === null ? best.decayFactor : Math.min(Math.max(this.played, low), high);
    const play = this.played === null ? best : Solver.play(game, gamma);
    const certificate = Solver.certify(game, play);
    this.showControls(gamma);
    const told = this.reported * game.costs[this.client];
    const lie = { cost: told, ...Solver.report(game, this.client, told) };
    const honest = best.clientUtilities[this.client];
    this.showValues(best, play, certificate, lie, honest);
    this.showTable(play);
    this.showCommand();
    this.cards[0].take(this.leaderCard(best, play));
    this.cards[1].take(this.responseCard(play));
    this.cards[2].take(this.reportCard(lie, honest));
  }

  showControls(gamma) {
    const { game, node } = this;
    const input = (name) => node.querySelector(`input[name=${name}]`);
    const [fewest, most] = game.epochBounds;
    input("fewest").value = fewest;
    input("most").value = Math.min(most, this.most);
    input("gamma").value = gamma * 1000;
    this.tell("round", game.round);
    this.tell("price", figures(game.price));
    this.tell("fewest", fewest);
    this.tell("most", Number.isFinite(most) ? most : "no bound");
    this.tell("cost", figures(game.costs[this.client]));
    this.tell("report", figures(this.reported * game.costs[this.client]));
    this.tell("contribution", figures(game.contributions[this.client]));
    this.tell("gamma", figures(gamma));
  }

  showValues(best, play, certificate, lie, honest) {
    const abstain = play.abstains.filter(Boolean).length;
    const facts = [
      ["equilibrium", "equilibrium γ*", best.decayFactor, "the server's best move"],
      ["server", "server utility", play.serverUtility, `at γ = ${figures(play.decayFactor)}`],
      ["free", "without bounds", Solver.unconstrained(this.game), "min(1, A / (2λt − B))"],
      ["gap", "follower gap", certificate.followerGap, "what a client could still gain"],
      ["regret", "leader regret", certificate.leaderRegret, "what the server could still gain"],
      ["slack", "smallest utility", certificate.rationalitySlack,
        abstain ? `${abstain} of ${play.abstains.length} stay out` : "of those who take part"],
      ["honest", "utility if honest", honest, this.game.clients[this.client]],
      ["report", "utility after its report", lie.utility, `then γ* = ${figures(lie.decayFactor)}`],
    ];
    this.values.replaceChildren(...facts.map(([name, label, value, note]) =>
      make("div", { class: "fact" }, make("dt", {}, label),
        make("dd", { class: "value", "data-name": name, "data-value": value }, figures(value)),
        make("dd", { class: "note" }, note))));
  }

  showTable(play) {
    const { game } = this;
    this.table.replaceChildren(...game.clients.map((name, i) => make("tr", {},
      make("th", { scope: "row" }, name),
      make("td", {}, figures(game.contributions[i])), make("td", {}, figures(game.costs[i])),
      make("td", { "data-value": play.localEpochs[i] },
        play.abstains[i] ? "stays out" : figures(play.localEpochs[i])),
      make("td", { "data-value": play.clientUtilities[i] }, figures(play.clientUtilities[i])))));
  }

  showCommand() {
    const { contributions, costs, round, price, epochBounds, wholeEpochs, decayBounds } = this.game;
    const most = Number.isFinite(epochBounds[1]) ? epochBounds[1] : "inf";
    this.command.textContent = contributions.length > 40
      ? `with ${contributions.length} clients it is too long: flamma game solve --clients FILE.csv`
      : `flamma game solve --contributions ${contributions} --costs ${costs} --round ${round} `
        + `--price ${price} --epochs ${epochBounds[0]}:${most}${wholeEpochs ? "" : " --continuous"} `
        + `--decay-bounds ${decayBounds.join(":")}`;
  }

  // The chosen client's utility over what it could report, each point one game solved.
  reportCard(lie, honest) {
    const traces = [];
    if (lie) {
      const { client, game } = this;
      const points = Math.round(Math.min(161, Math.max(21, 4000 / game.costs.length)));
      const costs = Array.from({ length: points }, (_, k) =>
        game.costs[client] * 100 ** ((2 * k) / (points - 1) - 1));
      traces.push(
        { type: "scatter", mode: "lines", name: "utility at its true cost", x: costs,
          y: costs.map((cost) => Solver.report(game, client, cost).utility), series: 0 },
        { type: "scatter", mode: "markers", name: "honest", x: [game.costs[client]], y: [honest],
          series: 5, marker: { symbol: "star", size: 16 } },
        { type: "scatter", mode: "markers", name: "its report", x: [lie.cost], y: [lie.utility],
          series: 4, marker: { symbol: "circle-open", size: 13 } },
      );
    }
    return { name: "reports", title: "What the chosen client gains by what it reports", height: 260,
      aid: "The server solves the game with the reported cost, price and bounds of γ staying as "
        + "they are; the client works as is best at its true cost. Where a run derives its price "
        + "from the reports, flamma game audit says what they bring.",
      views: [{ traces, layout: { xaxis: { title: "reported cost", type: "log" },
        yaxis: { title: "utility" } }, label: "" }] };
  }

  leaderCard(best, play) {
    const traces = [];
    if (best) {
      const curve = Solver.leaderCurve(this.game);
      traces.push(
        { type: "scatter", mode: "lines", name: "server utility", x: curve.x, y: curve.y, series: 0 },
        { type: "scatter", mode: "markers", name: "equilibrium", x: [best.decayFactor],
          y: [best.serverUtility], series: 5, marker: { symbol: "star", size: 16 } },
      );
      if (play !== best) {
        traces.push({ type: "scatter", mode: "markers", name: "played", x: [play.decayFactor],
          y: [play.serverUtility], series: 4, marker: { symbol: "circle-open", size: 13 } });
      }
    }
    return { name: "leader-curve", title: "The server's utility over its decay factor", height: 280,
      aid: "With the clients' best responses: each jump is a client that joins or does one epoch "
        + "more. The star is the equilibrium.",
      views: [{ traces, layout: { xaxis: { title: "decay factor γ", range: [-0.02, 1.02] },
        yaxis: { title: "utility" } }, label: "" }] };
  }

  responseCard(play) {
    const traces = [];
    if (play) {
      const grid = Array.from({ length: 601 }, (_, k) => k / 600);
      const answers = grid.map((gamma) => Solver.bestResponse(this.game, gamma));
      const shown = [this.client, ...this.game.clients.keys()].filter((c, k, all) =>
        all.indexOf(c) === k).slice(0, 6);
      shown.forEach((client, series) => {
        traces.push(
          { type: "scatter", mode: "lines", name: this.game.clients[client], x: grid,
            y: answers.map((tau) => tau[client]), series, line: { shape: "hv" } },
          { type: "scatter", mode: "markers", name: `${this.game.clients[client]}, now`,
            x: [play.decayFactor], y: [play.localEpochs[client]], series,
            of: this.game.clients[client] },
        );
      });
    }
    return { name: "responses", title: "The clients' best responses", height: 260,
      aid: "The best number of local epochs of each client at every γ, and its answer to the γ that "
        + "is played. Of many clients the chosen one and the first few are drawn.",
      views: [{ traces, layout: { xaxis: { title: "decay factor γ", range: [-0.02, 1.02] },
        yaxis: { title: "local epochs τ*", rangemode: "tozero" } }, label: "" }] };
  }
}

// A number as people read it; what is only rounding is 0.
function figures(value) {
  if (Math.abs(value) < 1e-9) return "0";
  return Number(value.toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 });
}

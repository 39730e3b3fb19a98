"use strict";
// The game of one round, solved in the page by the mathematics of flamma.game: exact pieces of the
// leader's utility, ties the leader's way, whole or continuous epochs, abstention.
//
// A game is {contributions, costs, round, price, epochBounds, wholeEpochs, decayBounds}; an upper
// epoch bound may be Infinity.
const Solver = (() => {
  const TIE = 1e-12; // below this relative distance a client counts as indifferent
  const LEADER_TIE = 1e-14; // the same for two decay factors of the leader

  const clip = (value, low, high) => Math.min(Math.max(value, low), high);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const influencePrice = (game) => game.price * game.round;

  // How many local epochs are best for each client, given the decay factor.
  function bestResponse(game, gamma) {
    const [low, high] = game.epochBounds;
    return game.contributions.map((omega, i) => {
      const pull = gamma * omega;
      let epochs = pull / (2 * game.costs[i]);
      if (game.wholeEpochs) epochs = Math.floor(epochs * (1 + TIE) + 0.5);
      epochs = clip(epochs, low, high);
      return low > 0 && !(pull * (1 + TIE) >= game.costs[i] * low) ? 0 : epochs;
    });
  }

  const clientUtility = (game, gamma, tau) =>
    tau.map((epochs, i) => epochs * (gamma * game.contributions[i] - game.costs[i] * epochs));

  const takesPart = (game, epochs) => epochs > 0 || game.epochBounds[0] === 0;

  function serverUtility(game, gamma, tau) {
    const work = sum(tau.map((t, i) => (takesPart(game, t) ? game.contributions[i] + t : 0)));
    return gamma * work - influencePrice(game) * gamma ** 2;
  }

  // The leader's utility linear γ + quadratic γ², piece by piece over the range of γ.
  function pieces(game) {
    const [gammaMin, gammaMax] = game.decayBounds;
    const clients = game.contributions
      .map((omega, i) => ({ omega, ratio: game.costs[i] / omega }))
      .filter((client) => client.omega > 0)
      .sort((a, b) => a.ratio - b.ratio);
    const found = game.wholeEpochs ? wholeChanges(game, clients) : continuousChanges(game, clients);
    const changes = found.changes.sort((a, b) => a.position - b.position);
    const linear = [found.linear];
    for (const change of changes) linear.push(linear.at(-1) + change.linear);
    const quadratic = [found.quadratic]; // from the top, so that nearly free clients cancel nothing
    for (const change of changes.toReversed()) quadratic.push(quadratic.at(-1) - change.quadratic);
    quadratic.reverse();
    const cuts = changes.map((change) => clip(change.position, gammaMin, gammaMax));
    return linear.map((slope, k) => ({
      start: k === 0 ? gammaMin : cuts[k - 1],
      end: k === cuts.length ? gammaMax : cuts[k],
      linear: slope,
      quadratic: quadratic[k] - influencePrice(game),
    }));
  }

  const passed = (ratio, gamma, multiple) =>
    multiple === 0 || ratio <= (gamma / multiple) * (1 + TIE);

  function wholeChanges(game, clients) {
    const [gammaMin, gammaMax] = game.decayBounds;
    const [low, high] = game.epochBounds;
    const changes = [];
    let linear = 0;
    const nearest = (gamma, ratio) =>
      clip(Math.floor((gamma / (2 * ratio)) * (1 + TIE) + 0.5), low, high);
    for (const { omega, ratio } of clients) {
      if (!passed(ratio, gammaMax, low)) continue; // abstains everywhere
      const first = nearest(gammaMin, ratio);
      if (passed(ratio, gammaMin, low)) linear += omega + first;
      else changes.push({ position: low * ratio, linear: omega + low, quadratic: 0 });
      for (let epochs = first; epochs < nearest(gammaMax, ratio); epochs++) {
        changes.push({ position: (2 * epochs + 1) * ratio, linear: 1, quadratic: 0 });
      }
    }
    return { changes, linear, quadratic: 0 };
  }

  function continuousChanges(game, clients) {
    const [gammaMin, gammaMax] = game.decayBounds;
    const [low, high] = game.epochBounds;
    const changes = [];
    let linear = 0;
    let quadratic = 0;
    for (const { omega, ratio } of clients) {
      const slope = 0.5 / ratio; // of τ* in γ
      const steps = [
        { multiple: low, linear: omega + low, quadratic: 0 }, // enters
        { multiple: 2 * low, linear: -low, quadratic: slope }, // leaves the lower bound
        { multiple: 2 * high, linear: high, quadratic: -slope }, // reaches the upper one
      ];
      for (const step of steps) {
        if (!passed(ratio, gammaMax, step.multiple)) continue;
        quadratic += step.quadratic;
        if (passed(ratio, gammaMin, step.multiple)) linear += step.linear;
        else changes.push({ ...step, position: step.multiple * ratio });
      }
    }
    return { changes, linear, quadratic };
  }

  // The strong Stackelberg equilibrium: the best vertex or end point of all pieces.
  function solve(game) {
    const tops = pieces(game).map((piece) => {
      const peak = piece.quadratic < 0 ? piece.linear / (-2 * piece.quadratic) : piece.end;
      const gamma = clip(peak, piece.start, piece.end);
      return { ...piece, gamma, value: gamma * (piece.linear + piece.quadratic * gamma) };
    });
    const best = tops.reduce((a, b) => (b.value > a.value ? b : a));
    const scale = best.gamma * (best.linear + Math.abs(best.quadratic) * best.gamma);
    const enough = best.value - LEADER_TIE * scale;
    const [, top] = game.decayBounds;
    const last = tops.at(-1);
    if (top * (last.linear + last.quadratic * top) >= enough) return play(game, top);
    return play(game, Math.max(...tops.filter((t) => t.value >= enough).map((t) => t.gamma)));
  }

  // What happens when the leader plays γ and the clients answer.
  function play(game, gamma) {
    const epochs = bestResponse(game, gamma);
    return {
      decayFactor: gamma,
      localEpochs: epochs,
      abstains: epochs.map((t) => !takesPart(game, t)),
      clientUtilities: clientUtility(game, gamma, epochs),
      serverUtility: serverUtility(game, gamma, epochs),
    };
  }

  // What a client gets that reports this cost while its true one is the game's: the server solves
  // the game with the report, price and bounds staying, and the client answers by its true cost.
  function report(game, client, cost) {
    const told = game.costs.map((true_, i) => (i === client ? cost : true_));
    const gamma = solve({ ...game, costs: told }).decayFactor;
    return { decayFactor: gamma, utility: play(game, gamma).clientUtilities[client] };
  }

  // How far a play is from equilibrium, from evaluated utilities alone: every client's epochs are
  // tried around the peak, the leader's decay factors on a grid that is refined where it is best.
  function certify(game, played) {
    const gamma = played.decayFactor;
    let followerGap = 0;
    played.clientUtilities.forEach((utility, i) => {
      followerGap = Math.max(followerGap, bestUtility(game, i, gamma) - utility);
    });
    const working = played.clientUtilities.filter((_, i) => !played.abstains[i]);
    const better = leaderOptimum(game, gamma);
    return {
      followerGap,
      leaderRegret: better.utility - played.serverUtility,
      betterDecayFactor: better.gamma,
      rationalitySlack: working.length ? Math.min(...working) : 0,
      abstainingShare: played.abstains.filter(Boolean).length / played.abstains.length,
    };
  }

  function bestUtility(game, client, gamma) {
    const [low, high] = game.epochBounds;
    const pull = gamma * game.contributions[client];
    const utility = (tau) => tau * (pull - game.costs[client] * tau);
    const peak = clip(pull / (2 * game.costs[client]), low, high);
    const tried = game.wholeEpochs
      ? [-1, 0, 1, 2].map((step) => clip(Math.floor(peak) + step, low, high))
      : [peak, low, Number.isFinite(high) ? high : peak];
    return Math.max(0, ...tried.map(utility)); // 0: staying out
  }

  function leaderOptimum(game, gamma) {
    const at = (g) => ({ gamma: g, utility: serverUtility(game, g, bestResponse(game, g)) });
    const [low, high] = game.decayBounds;
    const grid = 1024;
    let step = (high - low) / grid;
    const points = Array.from({ length: grid + 1 }, (_, k) => at(k === grid ? high : low + k * step));
    let best = [at(gamma), ...points].sort((a, b) => b.utility - a.utility).slice(0, 6);
    while (step > 1e-15) {
      const near = best.flatMap((p) =>
        [-1, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1].map((share) =>
          at(clip(p.gamma + share * step, low, high))),
      );
      best = [...best, ...near].sort((a, b) => b.utility - a.utility).slice(0, 6);
      step /= 4;
    }
    return best[0];
  }

  // The leader's curve for drawing: x and y with a gap at every jump.
  function leaderCurve(game, points = 24) {
    const x = [];
    const y = [];
    const all = pieces(game).filter((piece) => piece.end > piece.start);
    const some = all.filter((_, k) => all.length <= 400 || k % Math.ceil(all.length / 400) === 0);
    for (const piece of some) {
      for (let k = 0; k <= points; k++) {
        const gamma = piece.start + ((piece.end - piece.start) * k) / points;
        x.push(gamma);
        y.push(gamma * (piece.linear + piece.quadratic * gamma));
      }
      x.push(null);
      y.push(null);
    }
    return { x, y, pieces: all.length };
  }

  // min(1, A / (2 λ t - B)) of continuous epochs without bounds; 1 where nothing bends downward.
  function unconstrained(game) {
    const total = sum(game.contributions);
    const response = sum(game.contributions.map((omega, i) => omega / game.costs[i]));
    const bend = 2 * influencePrice(game) - response;
    return bend > 0 ? Math.min(1, total / bend) : 1;
  }

  return { bestResponse, certify, leaderCurve, pieces, play, report, solve, unconstrained };
})();

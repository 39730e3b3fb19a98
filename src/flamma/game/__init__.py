"""The Stackelberg game between a server and its clients: exact equilibria and certificates.

The server announces a decay factor γ, and every client responds with the local epochs τ that are
best for itself. Everything here is a pure function of a :class:`Game` and needs numpy only.

Examples
--------
>>> from flamma.game import Game, solve, certify
>>> game = Game(contributions=[0.9, 0.8, 0.7], costs=[0.05, 0.1, 0.2], round=20)
>>> equilibrium = solve(game)
>>> round(equilibrium.decay_factor, 4), equilibrium.local_epochs.tolist()
(0.3889, [4, 2, 1])
>>> certificate = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
>>> max(certificate.follower_gap, certificate.leader_regret) < 1e-12
True
"""

from flamma.errors import GameError
from flamma.game.certificate import Certificate, certify
from flamma.game.costs import Contradiction, RevealedCosts, reveal_costs
from flamma.game.equilibrium import Equilibrium, Statics, comparative_statics, solve
from flamma.game.misreport import Misreport, best_misreport
from flamma.game.model import Game, best_response, client_utility, server_utility
from flamma.game.pricing import (
    PricingRule,
    closed_form_decay_factor,
    constant_decay,
    decay_start_round,
    harmonic_decay,
    price_for,
    printed_decay_factor,
    server_utility_is_concave,
    unbounded_best_response,
)

__all__ = [
    "Certificate",
    "Contradiction",
    "Equilibrium",
    "Game",
    "GameError",
    "Misreport",
    "PricingRule",
    "RevealedCosts",
    "Statics",
    "best_misreport",
    "best_response",
    "certify",
    "client_utility",
    "closed_form_decay_factor",
    "comparative_statics",
    "constant_decay",
    "decay_start_round",
    "harmonic_decay",
    "price_for",
    "printed_decay_factor",
    "reveal_costs",
    "server_utility",
    "server_utility_is_concave",
    "solve",
    "unbounded_best_response",
]

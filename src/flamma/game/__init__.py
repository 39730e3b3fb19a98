"""The Stackelberg game between a server and its clients: exact equilibria and certificates.

The server announces a decay factor γ, and every client answers with the local epochs τ that are
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

from flamma.errors import GameError as GameError
from flamma.game.certificate import Certificate as Certificate
from flamma.game.certificate import certify as certify
from flamma.game.costs import Contradiction as Contradiction
from flamma.game.costs import RevealedCosts as RevealedCosts
from flamma.game.costs import reveal_costs as reveal_costs
from flamma.game.equilibrium import Equilibrium as Equilibrium
from flamma.game.equilibrium import Statics as Statics
from flamma.game.equilibrium import comparative_statics as comparative_statics
from flamma.game.equilibrium import solve as solve
from flamma.game.misreport import Misreport as Misreport
from flamma.game.misreport import best_misreport as best_misreport
from flamma.game.model import Game as Game
from flamma.game.model import best_response as best_response
from flamma.game.model import client_utility as client_utility
from flamma.game.model import server_utility as server_utility
from flamma.game.pricing import PricingRule as PricingRule
from flamma.game.pricing import closed_form_decay_factor as closed_form_decay_factor
from flamma.game.pricing import constant_decay as constant_decay
from flamma.game.pricing import decay_start_round as decay_start_round
from flamma.game.pricing import harmonic_decay as harmonic_decay
from flamma.game.pricing import price_for as price_for
from flamma.game.pricing import printed_decay_factor as printed_decay_factor
from flamma.game.pricing import server_utility_is_concave as server_utility_is_concave
from flamma.game.pricing import unbounded_best_response as unbounded_best_response

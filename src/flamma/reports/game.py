"""The page of a game by itself: the explorer, without a run."""

from __future__ import annotations

from collections.abc import Sequence

from flamma.errors import GameError
from flamma.game import Game, solve
from flamma.reports.document import Document, Explorer, Facts, Section, number_text
from flamma.reports.run_charts import _MAX_PLAYERS, EXPLORER_LEAD, explored


def game_document(names: Sequence[str], game: Game) -> Document:
    """Return the page that explores a game.

    Raises
    ------
    GameError
        If it has too many clients to be solved anew at every move of a slider.
    """
    if game.clients > _MAX_PLAYERS:
        raise GameError(
            f"the explorer takes up to {_MAX_PLAYERS:,} clients, not {game.clients:,}: flamma game "
            f"sweep has no such limit."
        )
    equilibrium = solve(game)
    facts = [
        ("decay factor γ", number_text(equilibrium.decay_factor), "of the equilibrium"),
        ("server utility", number_text(equilibrium.server_utility), "of the equilibrium"),
        ("clients that abstain", str(int(equilibrium.abstains.sum())), f"of {game.clients:,}"),
    ]
    offered = [explored(game, names, equilibrium.decay_factor)]
    return Document(
        kind="game",
        title=f"Game of {game.clients:,} client{'s' * (game.clients != 1)}",
        subtitle=f"round {game.round}, price {game.price:.6g}",
        notices=[],
        facts=Facts(facts),
        sections=[Section("explorer", "Game explorer", EXPLORER_LEAD, [Explorer(offered)])],
        footer="Made by FLamma",
    )

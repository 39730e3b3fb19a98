"""``flamma game audit``: what each client of a game could gain by misreporting its cost."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flamma.cli.parser import Parser
from flamma.errors import FlammaError

if TYPE_CHECKING:
    from flamma.game import Misreport, PricingRule

ROWS_SHOWN = 40


def add_audit_arguments(parser: Parser) -> None:
    """Add what only the audit asks for."""
    parser.add_argument("--round", type=int, default=1, help="the round t (default 1)")
    parser.add_argument("--rounds", type=int, help="all rounds; needed with --decay-start")
    pricing = parser.add_argument_group("how reports move the offers")
    pricing.add_argument(
        "--pricing",
        choices=("common", "others"),
        default="common",
        help="one decay factor for all clients (default), or for each the one of the others' game",
    )
    pricing.add_argument(
        "--floor",
        type=_floor,
        metavar="SHARE",
        help="the smallest decay factor: a number, or 'participation' for the smallest at which "
        "all clients work that would at 1 (default: that of --decay-bounds)",
    )


def _floor(text: str) -> float | str:
    if text == "participation":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor 'participation'"
        ) from None


def pricing_rule(options: argparse.Namespace) -> PricingRule | None:
    """Return the rule that the options describe; none if no report moves price or floor."""
    from flamma.game import PricingRule

    derived = options.decay_start is not None
    if options.pricing == "common" and options.floor is None and not derived:
        return None
    low, high = options.decay_bounds
    if high != 1:
        raise FlammaError(
            "with --pricing others, --floor or --decay-start the decay factor goes "
            "up to 1: give --decay-bounds LOWER:1."
        )
    price = 1.0 if options.price is None and not derived else options.price
    return PricingRule(
        rule=options.pricing,
        decay_floor=low if options.floor is None else options.floor,
        price=price,
        decay_start=options.decay_start if derived else 1.0,
        rounds=options.rounds or 1,
        epoch_bounds=options.epochs,
        whole_epochs=not options.continuous,
    )


def audit_record(names: list[str], lies: list[Misreport]) -> dict[str, Any]:
    """Return the audit of a game as a record; an infinite relative gain is null."""
    rows = [
        {
            "name": names[lie.client],
            **asdict(lie),
            "gain": lie.gain,
            "relative_gain": lie.relative_gain if math.isfinite(lie.relative_gain) else None,
        }
        for lie in lies
    ]
    return {"largest_gain": max(lie.gain for lie in lies), "clients": rows}


def print_audit(names: list[str], lies: list[Misreport]) -> None:
    """Print every client's best lie, and the largest one in a sentence."""
    from flamma.experiments.presented import text_table

    header = [
        *("client", "true cost", "decay factor", "utility"),
        *("best report", "then decay factor", "then utility", "gain"),
    ]
    rows = [
        [
            names[lie.client],
            f"{lie.honest_cost:.4g}",
            f"{lie.honest_decay_factor:.4g}",
            f"{lie.honest_utility:.4g}",
            *(
                (
                    f"{lie.cost:.4g}",
                    f"{lie.decay_factor:.4g}",
                    f"{lie.utility:.4g}",
                    _relative(lie),
                )
                if lie.gain
                else ("the truth", "", "", "0")
            ),
        ]
        for lie in lies[:ROWS_SHOWN]
    ]
    print(text_table(header, rows))
    if len(lies) > ROWS_SHOWN:
        print(f"... and {len(lies) - ROWS_SHOWN} more (--json prints all)")
    print(f"\n{sentence(names, lies)}")


def sentence(names: list[str], lies: list[Misreport]) -> str:
    """Return the largest gain in words, by how many times the honest utility it is."""
    liars = [lie for lie in lies if lie.gain]
    if not liars:
        return "No client gains by misreporting its cost."
    lie = max(liars, key=lambda each: (each.relative_gain, each.gain))
    name = names[lie.client]
    what = f"by saying {lie.cost:.3g} instead of {lie.honest_cost:.3g}"
    if lie.honest_utility == 0:
        text = f"{name} gets {lie.utility:.3g} instead of nothing {what}."
    elif lie.relative_gain >= 1:
        text = f"{name} gets {lie.utility / lie.honest_utility:.2g} times as much {what}."
    else:
        text = f"{name} gains {100 * lie.relative_gain:.2g}% {what}."
    return text[0].upper() + text[1:]


def _relative(lie: Misreport) -> str:
    if math.isinf(lie.relative_gain):
        return f"+{lie.gain:.3g}"
    return f"+{100 * lie.relative_gain:.3g}%"

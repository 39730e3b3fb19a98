"""Arithmetic that gives the same bits on every machine.

BLAS, the vectorised exponentials of numpy and the mathematical library of the operating system
choose their code by the processor, and so their rounding. What a run is made of goes through the
functions here instead. They use nothing but elementwise ``+ - * /``, square roots, comparisons,
rounding to whole numbers and powers of two, all of which IEEE 754 defines to the last bit, and
they add in an order that is stated.

Examples
--------
>>> from flamma.numerics import exp, total
>>> total([0.25, 0.5, 1.0]), float(exp(0.0))
(1.75, 1.0)
"""

from flamma.numerics.draws import dirichlet, gumbel, normal, normal_float32
from flamma.numerics.elementary import cosine_of_half_turns, exp, log, power
from flamma.numerics.sums import dot, norm, total, totals, weighted_sum

__all__ = [
    "cosine_of_half_turns",
    "dirichlet",
    "dot",
    "exp",
    "gumbel",
    "log",
    "norm",
    "normal",
    "normal_float32",
    "power",
    "total",
    "totals",
    "weighted_sum",
]

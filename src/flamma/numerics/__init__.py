"""Arithmetic that gives the same bits on every machine.

BLAS, the vectorised exponentials of numpy and the mathematical library of the operating system
choose their code by the processor, and so their rounding. What a run is made of goes through the
functions here instead. They use nothing but elementwise ``+ - * /``, square roots, comparisons,
rounding to whole numbers and powers of two, all of which IEEE 754 defines to the last bit, and
they add in an order that is stated.
"""

from flamma.numerics.draws import dirichlet as dirichlet
from flamma.numerics.draws import gumbel as gumbel
from flamma.numerics.draws import normal as normal
from flamma.numerics.draws import normal_float32 as normal_float32
from flamma.numerics.elementary import cosine_of_half_turns as cosine_of_half_turns
from flamma.numerics.elementary import exp as exp
from flamma.numerics.elementary import log as log
from flamma.numerics.elementary import power as power
from flamma.numerics.sums import dot as dot
from flamma.numerics.sums import norm as norm
from flamma.numerics.sums import total as total
from flamma.numerics.sums import totals as totals
from flamma.numerics.sums import weighted_sum as weighted_sum

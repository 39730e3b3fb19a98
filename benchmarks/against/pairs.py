"""Which of our strategies is compared with whose, and why they differ where they do."""

from __future__ import annotations

from dataclasses import dataclass

from ours import Ours
from problem import EQUAL, SOME, Problem

from flamma.registry import Choice

ALL, FEW = Problem(), Problem(cohorts=SOME)
ALIKE, FEW_ALIKE = Problem(EQUAL), Problem(EQUAL, SOME)
UNEQUAL_EPOCHS = Problem(EQUAL, epochs=(1, 2, 3, 1, 2, 4))

PACKAGES = {
    "flower": "flwr",
    "fedlab": "fedlab",
    "flgo": "flgo",
    "fluke": "fluke-fl",
    "pfl": "pfl",
}
"""The distributions behind the modules ``*_rules``."""


@dataclass(frozen=True)
class Side:
    """A problem, our strategy on it, and the name of what plays theirs in its module."""

    ours: Ours
    theirs: str
    problem: Problem = ALL


@dataclass(frozen=True)
class Pair:
    """A comparison as both come; if that differs, why, and a second one without the reason."""

    package: str
    rule: str
    given: Side
    reason: str = ""
    without: Side | None = None


MEDIAN = Choice("median", {"weighted": False})
TRIMMED = Choice("trimmed-mean", {"share": 1 / 6, "weighted": False})
FEDAVG, FEDPROX = Ours("fedavg"), Ours("fedprox", {"mu": 0.5})
QFFL, NOVA = Ours("qffl", {"q": 0.5}), Ours("fednova")
SCAFFOLD, SHORT_SCAFFOLD = Ours("scaffold"), Ours("scaffold", {"server_step": 0.7})
FEDDYN = Ours("feddyn", {"alpha": 0.1})
DITTO = Ours("ditto", own_models=True)
CHOICE = Ours("power-of-choice", {"candidates": 6}, per_round=3)
AFL = Ours("afl", {"step": 0.1})
LATE_AFL = Ours("afl", {"step": 0.1}, late_survey=True)
MET = Ours("qffl", {"q": 0.5}, met_losses=True)
FEDFV, INNER_FEDFV = Ours("fedfv"), Ours("fedfv", {"tau": 0})
FEDMGDA = Ours("fedmgda+", {"server_step": 0.5})

PLAIN_MEANS = "theirs: plain means whatever the data sizes; McMahan et al. have Σ n_k w_k / n"
FEDLAB_QFFL = (
    "theirs: F_k is the sum of the mini-batch losses of the last epoch; Li et al. have the loss of "
    "the received model, F_k(w^t)"
)
FEDLAB_FEDDYN = (
    "theirs: h adds Σ w_k - w where Acar et al. have Σ (w_k - w), and the regulariser is computed "
    "from detached weights, so that clients do plain SGD"
)
FEDLAB_NOVA = "theirs: p_k = 1/K ('we simply set it 1/m here'); Wang et al. have p_k = n_k / n"
FLUKE_NOVA = (
    "theirs: Σ p_k (τ_eff / a_k) w_k of models; Wang et al. have w + τ_eff Σ p_k u_k / a_k of "
    "updates, so (1 - Σ p_k τ_eff / a_k) w is missing"
)
FLUKE_FEDDYN = (
    "theirs: clients keep -α u_k and multiply it by α once more, where Acar et al. have "
    "h_k ← h_k - α u_k and -⟨h_k, v⟩: another sign, and α²; and α is divided by n_k N / n, as in "
    "the authors' code"
)
PFL_SCAFFOLD = (
    "theirs: c_k' = c_k - c + u_k / (a_k η); Karimireddy et al. have c_k - c + (x - y_k) / (K η), "
    "which is -u_k, so controls push the wrong way and grow"
)
FLGO_AFL = (
    "ours: λ moves before the round, by the losses of the same model, and starts at data shares; "
    "in Mohri et al. w and λ move at once, and theirs starts at 1/N"
)
FLGO_FEDFV = (
    "ours: means by data size, where Wang et al. have plain ones; theirs: of the last τ rounds "
    "this one is the first, so τ = 1 looks at no earlier one"
)

PAIRS = (
    Pair("flower", "FedAvg", Side(FEDAVG, "fedavg", FEW)),
    Pair("flower", "q-FFL, q 0.5", Side(QFFL, "qffl", FEW)),
    Pair("flower", "median", Side(Ours("fedavg", {"aggregator": MEDIAN}), "median")),
    Pair(
        "flower", "trimmed mean, 1/6", Side(Ours("fedavg", {"aggregator": TRIMMED}), "trimmed_mean")
    ),
    Pair("flower", "Krum, one attacker", Side(Ours("fedavg", {"aggregator": "krum"}), "krum")),
    Pair(
        "fedlab",
        "FedAvg",
        Side(FEDAVG, "fedavg", FEW),
        PLAIN_MEANS,
        Side(FEDAVG, "fedavg", FEW_ALIKE),
    ),
    Pair(
        "fedlab",
        "FedProx, μ 0.5",
        Side(FEDPROX, "fedprox", FEW),
        PLAIN_MEANS,
        Side(FEDPROX, "fedprox", FEW_ALIKE),
    ),
    Pair("fedlab", "q-FFL, q 0.5", Side(QFFL, "qffl"), FEDLAB_QFFL, Side(MET, "qffl")),
    Pair(
        "fedlab",
        "FedNova",
        Side(NOVA, "fednova"),
        FEDLAB_NOVA,
        Side(NOVA, "fednova", UNEQUAL_EPOCHS),
    ),
    Pair("fedlab", "SCAFFOLD, η_g 0.7", Side(SHORT_SCAFFOLD, "scaffold", FEW)),
    Pair(
        "fedlab",
        "FedDyn, α 0.1",
        Side(FEDDYN, "feddyn", FEW),
        FEDLAB_FEDDYN,
        Side(FEDDYN, "feddyn_mended", FEW),
    ),
    Pair("fedlab", "Ditto", Side(DITTO, "ditto")),
    Pair("fedlab", "Power-of-Choice, d = N", Side(CHOICE, "power_of_choice")),
    Pair("flgo", "FedAvg", Side(FEDAVG, "fedavg", FEW)),
    Pair("flgo", "FedProx, μ 0.5", Side(FEDPROX, "fedprox", FEW)),
    Pair("flgo", "q-FFL, q 0.5", Side(QFFL, "qffl", FEW)),
    Pair("flgo", "FedNova", Side(NOVA, "fednova", FEW)),
    Pair("flgo", "SCAFFOLD, η_g 0.7", Side(SHORT_SCAFFOLD, "scaffold", FEW)),
    Pair("flgo", "FedDyn, α 0.1", Side(FEDDYN, "feddyn", FEW)),
    Pair("flgo", "Ditto, λ 1, with own models", Side(DITTO, "ditto")),
    Pair("flgo", "AFL, s 0.1", Side(AFL, "afl"), FLGO_AFL, Side(LATE_AFL, "afl", ALIKE)),
    Pair(
        "flgo",
        "FedFV, α 0.1, τ 1",
        Side(FEDFV, "fedfv", FEW),
        FLGO_FEDFV,
        Side(INNER_FEDFV, "fedfv", FEW_ALIKE),
    ),
    Pair("flgo", "FedMGDA+, ε 0.1", Side(FEDMGDA, "fedmgda", FEW)),
    Pair("flgo", "Power-of-Choice, d = N", Side(CHOICE, "power_of_choice")),
    Pair("fluke", "FedAvg", Side(FEDAVG, "fedavg", FEW)),
    Pair("fluke", "FedProx, μ 0.5", Side(FEDPROX, "fedprox", FEW)),
    Pair("fluke", "FedNova", Side(NOVA, "fednova"), FLUKE_NOVA, Side(NOVA, "fednova_mended")),
    Pair("fluke", "SCAFFOLD, unweighted", Side(SCAFFOLD, "scaffold", FEW)),
    Pair(
        "fluke",
        "FedDyn, α 0.1",
        Side(FEDDYN, "feddyn"),
        FLUKE_FEDDYN,
        Side(FEDDYN, "feddyn_mended", ALIKE),
    ),
    Pair("fluke", "Ditto, λ 1, with own models", Side(DITTO, "ditto")),
    Pair("pfl", "FedAvg, by data points", Side(FEDAVG, "fedavg", FEW)),
    Pair("pfl", "FedProx, μ 0.5", Side(FEDPROX, "fedprox", FEW)),
    Pair(
        "pfl",
        "SCAFFOLD, option II",
        Side(SCAFFOLD, "scaffold", FEW),
        PFL_SCAFFOLD,
        Side(SCAFFOLD, "scaffold_mended", FEW),
    ),
)

"""The model size and the number of tokens that make the best use of a compute budget.

The loss L(N, D) = E + A/N^α + B/D^β, under C = 6·N·D, has its minimum at N = G·(C/6)^a and D = (C/6)^b/G, with G = (αA/βB)^(1/(α+β)),
a = β/(α+β) and b = α/(α+β) (Hoffmann et al. 2022, approach 3, eq. 4). The published coefficients do not reproduce. A refit of the same data
(Besiroglu et al. 2024) agrees with the paper's approaches 1 and 2, which give about twenty tokens per parameter. Estimates use the refit.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Law:
    name: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float


HOFFMANN = Law("Hoffmann et al. 2022, approach 3", 1.69, 406.4, 410.7, 0.34, 0.28)
BESIROGLU = Law("Besiroglu et al. 2024, refit", 1.8172, 482.01, 2085.43, 0.3478, 0.3658)
TOKENS_PER_PARAMETER = 20
CAVEATS = (
    "Hoffmann's published coefficients do not reproduce (Besiroglu et al. 2024): count on the refit",
    "fitted to dense transformers on English text of 70 million to 16 billion parameters: the loss is of their data, not of yours",
    "where the model will answer many requests, a smaller one trained for longer is cheaper in all (Sardana et al. 2024)",
    "tokens are taken to be new: beyond some four passes over the same ones they teach less (Muennighoff et al. 2023)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptimum:
    """The best model size and number of tokens by one law."""

    law: str
    parameters: int
    tokens: int
    tokens_per_parameter: float
    loss: float | None  #: In nats per token. None if the law does not predict it.


def optimum(law: Law, flops: float) -> ComputeOptimum:
    both = law.alpha + law.beta
    g = (law.alpha * law.a / (law.beta * law.b)) ** (1 / both)
    parameters = g * (flops / 6) ** (law.beta / both)
    tokens = flops / 6 / parameters
    loss = law.e + law.a / parameters**law.alpha + law.b / tokens**law.beta
    return _optimum(law.name, parameters, tokens, loss)


def optima(flops: float) -> list[ComputeOptimum]:
    """Return the optimum by each law, the recommended one first."""
    parameters = (flops / (6 * TOKENS_PER_PARAMETER)) ** 0.5
    name = "twenty tokens a parameter (approaches 1 and 2)"
    by_rule = _optimum(name, parameters, TOKENS_PER_PARAMETER * parameters, None)
    return [optimum(BESIROGLU, flops), by_rule, optimum(HOFFMANN, flops)]


def _optimum(law: str, parameters: float, tokens: float, loss: float | None) -> ComputeOptimum:
    return ComputeOptimum(
        law=law,
        parameters=round(parameters),
        tokens=round(tokens),
        tokens_per_parameter=tokens / parameters,
        loss=loss,
    )

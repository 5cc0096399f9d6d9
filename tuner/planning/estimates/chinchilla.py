"""The size of model, and the tokens, that a compute budget is best spent on.

L(N, D) = E + A/N^α + B/D^β under C = 6·N·D has its least at N = G·(C/6)^a, D = (C/6)^b/G, with G = (αA/βB)^(1/(α+β)), a = β/(α+β),
b = α/(α+β) (Hoffmann et al. 2022, approach 3, eq. 4). Its published coefficients do not reproduce: a refit of the same data gives
others (Besiroglu et al. 2024), which agree with the paper's approaches 1 and 2, some twenty tokens a parameter. The refit is counted on.
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
class Optimum:
    """By one law. `loss` in nats a token; None: the rule says none."""

    law: str
    parameters: int
    tokens: int
    tokens_per_parameter: float
    loss: float | None


def optimum(law: Law, flops: float) -> Optimum:
    both = law.alpha + law.beta
    g = (law.alpha * law.a / (law.beta * law.b)) ** (1 / both)
    parameters = g * (flops / 6) ** (law.beta / both)
    tokens = flops / 6 / parameters
    loss = law.e + law.a / parameters**law.alpha + law.b / tokens**law.beta
    return _shown(law.name, parameters, tokens, loss)


def rule_of_twenty(flops: float) -> Optimum:
    parameters = (flops / (6 * TOKENS_PER_PARAMETER)) ** 0.5
    name = "twenty tokens a parameter (approaches 1 and 2)"
    return _shown(name, parameters, TOKENS_PER_PARAMETER * parameters, None)


def optima(flops: float) -> list[Optimum]:
    """The one to count on first."""
    return [optimum(BESIROGLU, flops), rule_of_twenty(flops), optimum(HOFFMANN, flops)]


def _shown(law: str, parameters: float, tokens: float, loss: float | None) -> Optimum:
    return Optimum(
        law=law,
        parameters=round(parameters),
        tokens=round(tokens),
        tokens_per_parameter=tokens / parameters,
        loss=loss,
    )

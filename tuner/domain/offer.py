"""What a node costs. Copied into the job at admission, so that a bill cannot change under a running job."""

from dataclasses import dataclass

from tuner.domain.money import Price, Rate, trial_rate


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of node: `price` is for the whole node, `source` says where it comes from and of which date."""

    instance_type: str
    price: Price
    cpus: float
    gpus: float
    market: str = "on_demand"
    region: str | None = None
    source: str = ""

    def rate(self, *, cpus: float, gpus: float) -> Rate:
        return trial_rate(
            node_price=self.price, node_cpus=self.cpus, node_gpus=self.gpus, cpus=cpus, gpus=gpus
        )

import pytest

from tuner.domain.job import Resources
from tuner.domain.money import Price
from tuner.domain.offer import Offer


@pytest.mark.parametrize(
    ("resources", "processes"),
    [
        (Resources(), 1),
        (Resources(gpus=0.5), 1),
        (Resources(gpus=4), 4),
        (Resources(gpus=4, processes_per_node=1), 1),
        (Resources(cpus=2, processes_per_node=2), 2),
    ],
)
def test_trial_has_one_process_for_each_gpu_unless_given(resources: Resources, processes: int) -> None:
    assert resources.processes == processes
    assert not resources.faults()


@pytest.mark.parametrize(
    ("resources", "pointer"),
    [
        (Resources(nodes=0), "/resources/nodes"),
        (Resources(processes_per_node=0), "/resources/processes_per_node"),
        (Resources(processes_per_node=257), "/resources/processes_per_node"),
        (Resources(gpus=2, processes_per_node=3), "/resources/processes_per_node"),
        (Resources(gpus=0.5, processes_per_node=2), "/resources/processes_per_node"),
    ],
)
def test_wrong_number_of_nodes_or_processes_is_refused(resources: Resources, pointer: str) -> None:
    assert [fault.pointer for fault in resources.faults()] == [pointer]


def test_price_and_gpus_of_a_trial_are_those_of_all_its_nodes() -> None:
    rate = Offer("g6", Price(1_000_000), 8, 4).rate(Resources(cpus=2, gpus=2, nodes=3))
    assert (rate.price, rate.milli_gpus) == (Price(1_500_000), 6000)

import pytest

from tuner.domain.job import AUTO_PACK, Resources
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


@pytest.mark.parametrize(
    "resources",
    [
        Resources(pack=1),
        Resources(pack=64),
        Resources(gpus=0.5, pack=4),
        Resources(gpus=4, processes_per_node=1, pack=2),
        Resources(nodes=2, pack=1),
        Resources(nodes=2, gpus=2, pack=AUTO_PACK),
    ],
)
def test_trials_of_one_process_may_share_a_worker(resources: Resources) -> None:
    assert not resources.faults()


@pytest.mark.parametrize(
    ("resources", "fix"),
    [
        (Resources(pack=-1), "must be auto, or between 1 and 64"),
        (Resources(pack=65), "must be auto, or between 1 and 64"),
        (Resources(nodes=2, pack=2), "set nodes to 1"),
        (Resources(gpus=2, pack=2), "a trial with several GPUs starts one process for each GPU"),
        (Resources(cpus=2, processes_per_node=2, pack=2), "each trial starts 2 processes"),
    ],
)
def test_trials_of_several_processes_or_nodes_cannot_share_a_worker(resources: Resources, fix: str) -> None:
    (fault,) = resources.faults()
    assert fault.pointer == "/resources/pack"
    assert fix in fault.detail


def test_trials_need_one_worker_for_each_full_pack() -> None:
    assert [Resources(pack=4).workers(trials) for trials in (1, 4, 5, 8)] == [1, 1, 2, 2]
    assert Resources().workers(5) == 5
    assert Resources(nodes=2, pack=1).on_one_node == Resources(pack=4).on_one_node

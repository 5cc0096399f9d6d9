"""Test which trials a confirmation repeats, and how sure it is."""

import pytest

from tests.tuning.test_decide import AT, Story, begins
from tuner.database.codec import decode
from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.ids import trial_id
from tuner.domain.job import Confirm
from tuner.domain.money import Money
from tuner.tuning.confirm import confidence, mean
from tuner.tuning.reserve import Reserve


def searched(*values: float, seeds: int = 3, concurrency: int = 1) -> Story:
    """Return a job that confirms its best two trials, after all trials of its search have reached these values."""
    configs = [number / 100 for number in range(len(values))]
    confirm = Confirm(candidates=2, seeds=seeds, distinct=True)
    story = Story(concurrency, "none", trials=len(values), configs=configs, confirm=confirm)
    for number, value in enumerate(values):
        complete(story, number, value)
    return story


def complete(story: Story, number: int, value: float) -> list[do.Command]:
    story.report(number, 9, value)
    return story.tell(ev.Completed(AT, trial_id(number)))


def repeats(story: Story) -> list[tuple[int | None, int]]:
    return [(trial.repeats, trial.seed) for trial in story.state.trials if trial.repeats is not None]


def test_candidates_get_a_second_seed_and_the_better_half_a_third() -> None:
    story = searched(0.1, 0.9, 0.5)
    assert story.state.confirming
    assert Reserve.of(story.state) is None, "the search is over, so no money is kept for its trials"
    complete(story, 3, 0.1)  # the mean of trial 1 is 0.5
    complete(story, 4, 0.7)  # that of trial 2 is 0.6
    assert repeats(story) == [(1, 1), (2, 1), (2, 2)]
    complete(story, 5, 0.7)
    ending = story.state.ending
    assert ending is not None
    assert (ending.state, ending.reason) == ("succeeded", "confirmed")


def test_candidate_left_out_of_the_third_seed_stays_out_if_that_seed_is_unlucky() -> None:
    """Trial 1 is the better one after two seeds. After its third seed, its mean is below that of trial 2."""
    story = searched(0.1, 0.9, 0.8)
    complete(story, 3, 0.9)
    complete(story, 4, 0.8)
    assert repeats(story) == [(1, 1), (2, 1), (1, 2)]
    complete(story, 5, 0.1)
    assert repeats(story) == [(1, 1), (2, 1), (1, 2)]
    assert story.state.ending is not None
    assert story.state.ending.reason == "confirmed"


def test_third_seed_waits_for_the_results_of_the_second() -> None:
    story = searched(0.9, 0.5, concurrency=2)
    assert repeats(story) == [(0, 1), (1, 1)]
    assert begins(complete(story, 2, 0.9)) == []
    assert begins(complete(story, 3, 0.5)) == [("trial_00004", 9)]
    assert repeats(story)[-1] == (0, 2)


CONFIRM_OF_EARLIER_RELEASES = '{"v":1,"value":{"$":"Confirm","candidates":3,"seeds":2}}'


@pytest.mark.parametrize(
    ("confirm", "again", "configs"),
    [
        (Confirm(candidates=3, seeds=2, distinct=True), [(0, 1), (3, 1), (1, 1)], [0.1, 0.3, 0.2]),
        (decode(CONFIRM_OF_EARLIER_RELEASES), [(0, 1), (2, 1), (4, 1)], [0.1, 0.1, 0.1]),
    ],
    ids=["new", "begun by an earlier release"],
)
def test_candidates_are_different_configurations_in_new_jobs(
    confirm: Confirm, again: list[tuple[int, int]], configs: list[float]
) -> None:
    """Three trials of the search have the configuration with the best results."""
    suggested, values = [0.1, 0.2, 0.1, 0.3, 0.1], [0.9, 0.5, 0.9, 0.6, 0.9]
    story = Story(scheduler="none", trials=5, configs=suggested, confirm=confirm)
    for number, value in enumerate([*values, 0.8, 0.5, 0.6]):
        complete(story, number, value)
    assert repeats(story) == again
    assert [trial.config["x"] for trial in story.state.trials[5:]] == configs


@pytest.mark.parametrize(("rules", "more"), [(0, 0), (ev.RULES, 2)], ids=["earlier release", "now"])
def test_repeats_do_not_count_as_trials_of_the_budget(rules: int, more: int) -> None:
    """The search used its two trials, and one configuration was confirmed. Then two further trials are allowed."""
    story = searched(0.9, 0.5, seeds=2)
    for number in (2, 3):
        complete(story, number, 0.8)
    assert story.state.ended
    story.tell(ev.BudgetChanged(AT, Budget(usd=Money(10**6), trials=4)))
    story.tell(ev.Launched(AT, rules=rules), ev.ControlRequested(AT, "resume"))
    for trial in range(4, 4 + more):
        assert story.state.trials[trial].repeats is None
        complete(story, trial, 0.1)
    assert story.state.confirming or story.state.ended
    assert sum(trial.repeats is None for trial in story.state.trials) == 2 + more


def test_preempted_repeat_resumes_before_another_begins() -> None:
    story = searched(0.9, 0.5)
    assert begins(story.tell(ev.Preempted(AT, "trial_00002", 4))) == [("trial_00002", 9)]
    assert repeats(story) == [(0, 1)]


def test_trial_of_the_search_that_had_no_money_is_not_continued() -> None:
    """Confirmation uses money that was reserved, so the first repeat begins although the search has none left."""
    story = Story(scheduler="none", trials=2, confirm=Confirm(candidates=1, seeds=2))
    complete(story, 0, 0.9)
    story.tell(ev.Preempted(AT, "trial_00001", 0))
    assert begins(story.tell(ev.Refused(AT, "trial_00001", "budget_usd"))) == [("trial_00002", 9)]
    assert repeats(story) == [(0, 1)]


def test_nothing_is_confirmed_if_no_trial_has_reached_the_last_step() -> None:
    story = Story(scheduler="none", trials=1, confirm=Confirm(2, 3))
    story.tell(ev.Failed(AT, "trial_00000", "raised"))
    assert not story.state.confirming
    assert story.state.ending is not None


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([[1.0, 1.0], [0.5, 0.5]], 1.0),  # no variation
        ([[0.5, 0.5], [0.5, 0.5]], 0.5),
        ([[1.0, 0.6], [0.6, 0.2]], 0.8536),  # t = 1.4142 with 2 degrees of freedom
        ([[1.7e308, -1.7e308], [0.0, 0.0]], 0.5),  # too large to say how much the scores vary
    ],
)
def test_confidence_follows_students_t_test(results: list[list[float]], expected: float) -> None:
    assert confidence(results, 0, 1) == pytest.approx(expected, abs=1e-4)


def test_mean_of_huge_scores_is_finite() -> None:
    assert mean([1.7e308, 1.7e308]) == 1.7e308

"""The index of scenarios finds what a comparison of all scenarios finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejavu_cache.model.scenario import Scenario
from dejavu_cache.model.scenario_index import ScenarioIndex
from dejavu_cache.model.selection import distance

VALUES = st.one_of(
    st.integers(-4, 70), st.sampled_from([0.5, 1.0, 2.0, -1.5, True, False, "a", "b", None])
)
SCENARIOS = st.builds(
    Scenario,
    args=st.dictionaries(st.sampled_from("nmk"), VALUES, max_size=3),
    dtypes=st.dictionaries(st.sampled_from("xy"), st.sampled_from(["float16", "float32"])),
)


@given(
    recorded=st.lists(SCENARIOS, max_size=20, unique_by=lambda scenario: scenario.text),
    wanted=SCENARIOS,
    exact=st.sets(st.sampled_from("nmk")),
    max_distance=st.sampled_from([0.0, 1.0, 2.0, float("inf")]),
)
def test_the_nearest_is_the_one_that_comparing_all_finds(
    recorded: list[Scenario], wanted: Scenario, exact: set[str], max_distance: float
) -> None:
    index = ScenarioIndex(scenario.text for scenario in recorded)
    near = list(index.near(wanted, exact=exact, max_distance=max_distance))
    all_near = [
        (gap, scenario.text)
        for scenario in recorded
        if (gap := distance(wanted, scenario, exact)) <= max_distance and gap < float("inf")
    ]
    assert near == sorted(all_near)


@given(
    left=st.lists(SCENARIOS, max_size=12, unique_by=lambda scenario: scenario.text),
    right=st.lists(SCENARIOS, max_size=12, unique_by=lambda scenario: scenario.text),
    wanted=SCENARIOS,
)
def test_packed_and_joined_indexes_answer_as_one_of_all_scenarios(
    left: list[Scenario], right: list[Scenario], wanted: Scenario
) -> None:
    union = {scenario.text for scenario in (*left, *right)}
    parts = [ScenarioIndex(scenario.text for scenario in part) for part in (left, right)]
    packed = [ScenarioIndex.unpack(part.pack()) for part in parts]
    joined = ScenarioIndex.join(packed)
    for index in (joined, ScenarioIndex.unpack(joined.pack())):
        assert list(index.near(wanted)) == list(ScenarioIndex(union).near(wanted))


def test_an_index_that_was_cut_off_is_refused() -> None:
    packed = ScenarioIndex(Scenario(args={"n": n}).text for n in range(9)).pack()
    for length in range(len(packed)):
        with pytest.raises(ValueError, match=r"truncated|no index|not found|JSON|Expecting|cast"):
            ScenarioIndex.unpack(packed[:length])


def test_a_damaged_scenario_costs_no_other() -> None:
    whole = [Scenario(args={"n": n}).text for n in (3, 5)]
    for damaged in ('{"args": {"n" 4}}', "7", '{"args": {"n": [4]}, "dtypes": {}}', "{}, {}"):
        near = ScenarioIndex([whole[0], damaged, whole[1]]).near(Scenario(args={"n": 4}))
        assert [text for _, text in near] == [whole[1], whole[0]]

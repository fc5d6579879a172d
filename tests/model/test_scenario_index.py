"""The index of scenarios finds what a comparison of all scenarios finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.model.scenario_index import ScenarioIndex
from dejavu_cache.model.selection import distance, nearest

VALUES = st.one_of(
    st.integers(-4, 70), st.sampled_from([0.5, 1.0, 2.0, -1.5, True, False, "a", "b", None])
)
SCENARIOS = st.builds(
    Scenario,
    args=st.dictionaries(st.sampled_from("nmk"), VALUES, max_size=3),
    dtypes=st.dictionaries(st.sampled_from("xy"), st.sampled_from(["float16", "float32"])),
)


@settings(deadline=None, max_examples=300)
@given(
    recorded=st.lists(SCENARIOS, max_size=20, unique_by=lambda scenario: scenario.text),
    wanted=SCENARIOS,
    exact=st.sets(st.sampled_from("nmk")),
    max_distance=st.sampled_from([0.0, 1.0, 2.0, float("inf")]),
)
def test_the_nearest_is_the_one_that_comparing_all_finds(
    recorded: list[Scenario], wanted: Scenario, exact: set[str], max_distance: float
) -> None:
    near = ScenarioIndex(scenario.text for scenario in recorded).near(
        wanted, exact=exact, max_distance=max_distance
    )
    all_near = [
        (gap, scenario.text)
        for scenario in recorded
        if (gap := distance(wanted, scenario, exact)) <= max_distance and gap < float("inf")
    ]
    assert near == sorted(all_near)
    records = [Record(scenario=scenario) for scenario in recorded]
    expected = nearest(records, wanted, exact=exact, max_distance=max_distance)
    assert (expected and (expected.distance, expected.record.scenario.text)) == (
        near[0] if near else None
    )

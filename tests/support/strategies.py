"""Records of any shape, for property tests."""

from datetime import timedelta

from hypothesis import strategies as st

from dejavu_cache.model import record
from dejavu_cache.model.scenario import Scenario
from support.records import MOMENT, config, measurement

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=20
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
SCENARIOS = st.builds(
    Scenario,
    args=st.dictionaries(TEXT, SCALARS, max_size=4),
    dtypes=st.dictionaries(TEXT, TEXT, max_size=3),
)
MOMENTS = st.integers(0, 5).map(lambda hours: MOMENT + timedelta(hours=hours))
CASES = st.none() | st.dictionaries(
    st.sampled_from(["a", "b"]), st.floats(0, 1e6), min_size=1, max_size=2
)
TIMINGS = st.builds(
    lambda cases, **fields: measurement(**fields).model_copy(update={"cases": cases}),
    CASES,
    block=st.sampled_from([16, 32, 64]),
    median=st.floats(0, 1e6),
    at=MOMENTS,
)
FAILURES = st.builds(
    lambda timing, kind: record.Measurement(
        config=timing.config, failure=record.Failure(kind=kind, reason=kind), at=timing.at
    ),
    TIMINGS,
    st.sampled_from(["out_of_resources", "skipped"]),
)
MEASUREMENTS = TIMINGS | FAILURES
LAUNCHES = st.builds(
    record.RecordedLaunch,
    wheel=st.sampled_from(["triton 3.6.0 cp311", "triton 3.6.0 cp312"]),
    signature=st.dictionaries(TEXT, TEXT, max_size=2),
    constants=st.dictionaries(TEXT, SCALARS, max_size=2),
    bound=st.none() | st.just(config(16)),
)
VERDICTS = st.sampled_from(
    [
        record.OutputVerdict(outcome="equal"),
        record.OutputVerdict(outcome="wrong", reason="differs"),
        *(
            record.OutputVerdict(outcome="not_compared", reason=reason)
            for reason in (record.NO_MEMORY, record.SWITCHED_OFF, "not repeatable")
        ),
    ]
)
WINNERS = st.builds(
    record.Winner,
    config=st.just(config(16)) | st.just(config(32)),
    at=MOMENTS,
    results=st.none() | st.dictionaries(st.sampled_from(["out", "sum"]), VERDICTS, max_size=2),
)
RECORDS = st.builds(
    lambda measurements, winner, pin, launches: record.Record(
        scenario=Scenario(args={"M": 32}),
        measurements=tuple({item.config: item for item in measurements}.values()),
        winner=winner,
        pin=pin,
        launches=launches,
    ),
    st.lists(MEASUREMENTS, max_size=3),
    st.none() | WINNERS,
    st.none() | st.builds(record.Pin, config=st.none() | st.just(config(64)), at=MOMENTS),
    st.lists(LAUNCHES, max_size=2).map(tuple),
)

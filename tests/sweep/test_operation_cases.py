"""A suite of operations tunes what they launch, and a library finds it for other inputs."""

from pathlib import Path

import pytest
from support.checkout import PROGRAMS, ROOT
from support.fork_server import kernel_nursery
from support.sweeping import Sweeps

from dejavu_cache.stores import FileStore


def test_an_operation_is_tuned_over_its_inputs_forward_and_backward(tmp_path: Path) -> None:
    sweeps, path = Sweeps(tmp_path), str(ROOT / "records")
    sweeps.suite = PROGRAMS / "operation_suite.py"

    def launch() -> int:
        return kernel_nursery("1").start_file(
            sweeps.suite, folder=tmp_path, PYTHONPATH=path, TRITON_INTERPRET="1",
            DEJAVU_CACHE_MODE="strict", DEJAVU_CACHE_URL=sweeps.store.as_uri(),
        ).wait()  # fmt: skip

    assert launch() == 1, "nothing is tuned"
    assert "4 cases tuned, " in sweeps.run(PYTHONPATH=path)
    store = FileStore(sweeps.store)
    records = [record for context in store.contexts() for record in store.records(context)]
    forward, backward = ({c for m in r.measurements for c in m.cases or ()} for r in records)
    for number in (1, 2):
        names = {f"scale {length}: scale_kernel {number}" for length in (100, 300)}
        assert names in (forward, backward)
    assert launch() == 0


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "records/sets").iterdir()))
def test_a_set_has_winners_alone_and_names_nobody(name: str) -> None:
    store = FileStore(ROOT / "records/sets" / name, read_only=True)
    records = [record for context in store.contexts() for record in store.records(context)]
    assert len(records) > 5
    assert all(record.winner for record in records)
    assert {entry.by for record in records for entry in record.measurements} == {""}

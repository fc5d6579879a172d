"""No reader runs, imports, loads or writes anything because of what a stranger wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from support.hostile_artefacts import (
    HOSTILE_FILES,
    KINDS,
    Change,
    HostileDataReader,
    change,
    write_honest_artefacts,
)

SEEDS = Path(__file__).parent / "seeds"
"""Changes that a long run found or came upon, one list in a file."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    write_honest_artefacts(folder)
    return folder


@pytest.fixture(scope="module")
def reader(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileDataReader]:
    made = HostileDataReader(honest, tmp_path_factory.mktemp("cases"))
    yield made
    made.close()


def test_honest_artefacts_are_read(reader: HostileDataReader) -> None:
    assert reader.read(reader.new_case()) == []


@pytest.mark.parametrize("kind", [*HOSTILE_FILES, "link", "pipe", "folder"])
def test_nothing_runs_where_every_artefact_is_replaced(
    reader: HostileDataReader, kind: str
) -> None:
    folder = reader.new_case()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
        if kind == "link":
            path.symlink_to("/etc/passwd")
        elif (
            kind == "pipe"
            and path.parts[-2] != "foreign"
            and path.name not in ("dejavu.toml", "export.jsonl")
        ):
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.write_bytes(HOSTILE_FILES.get(kind, b""))
    assert reader.read(folder) == []


@pytest.mark.parametrize("seed", sorted(SEEDS.glob("*.json")), ids=lambda seed: seed.stem)
def test_nothing_runs_for_the_seeds_of_long_runs(reader: HostileDataReader, seed: Path) -> None:
    folder = reader.new_case()
    change(folder, json.loads(seed.read_text()))
    assert reader.read(folder) == []


CHANGES = st.tuples(
    st.integers(0, 200),
    st.sampled_from(KINDS),
    st.integers(0, 5000),
    st.integers(0, 255),
)


@settings(
    max_examples=settings().max_examples // 2,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=st.lists(CHANGES, min_size=1, max_size=12))
@example(changes=[(0, "plant", 0, 0), (1, "plant", 1, 1)])
def test_artefacts_changed_in_any_way(reader: HostileDataReader, changes: list[Change]) -> None:
    folder = reader.new_case()
    change(folder, changes)
    assert reader.read(folder) == []
    assert not Path("/tmp/dejavu-attack").exists()

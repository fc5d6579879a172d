"""A record answers a launch only if Triton compiles the same code: compiled without a GPU."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import kernel_nursery
from support.hidden_changes import CHANGES
from support.processes import ROOT, fork_python

SAMPLE = ("--sample", "40", "--settings", "8", "--pairs", "100", "--jobs", "1")
"""A fixed sample; `make identity` takes thousands, of every target."""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what was found for the fixed sample, in processes in which Triton compiles."""
    result = kernel_nursery("0").start_file(
        ROOT / "benchmarks" / "identity.py", *SAMPLE, "--targets", "cuda:90",
        folder=tmp_path_factory.mktemp("identity"), TRITON_INTERPRET="0",
    ).complete()  # fmt: skip
    assert result.stdout.startswith("{"), result.stdout[-2000:] + result.stderr[-4000:]
    return json.loads(result.stdout)["cuda:90"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("part", "tried", "share"),
    [("edits", "edited", 1 / 3), ("launches", "pairs", 1 / 5), ("settings", None, 1)],
)
def test_no_launch_runs_with_the_record_of_other_code(
    findings: dict[str, Any], part: str, tried: str | None, share: float
) -> None:
    """Neither of an edited kernel, nor with other arguments, nor under the compiler's settings."""
    found = findings[part]
    assert found["wrong"] == []
    assert found["reused"]
    assert tried is None or found["refused"] < found[tried] * share


def test_harmless_edits_of_a_kernel_tune_nothing(findings: dict[str, Any]) -> None:
    assert "costly" not in findings["edits"]


def test_what_no_text_of_a_kernel_shows_is_seen(findings: dict[str, Any]) -> None:
    changes = findings["changes"]
    assert changes["wrong"] == []
    assert len(changes["tuned"]) > len(CHANGES)  # each is launched with two alignments


def test_a_recorded_launch_of_other_code_is_generated_once(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from support.identity_check import import_anew, launch, prepare_process
        from support.identity_corpus import CORPUS
        from dejavu_cache.stores import FileStore
        from dejavu_cache.triton_internals import generated_code
        from dejavu_cache.triton_internals.config_names import describe

        folder = Path(sys.argv[1])
        prepare_process(folder, "cuda:90")
        kernel = CORPUS["helpers"]
        tuned = launch(folder / "kernels.py", kernel, folder / "store").kernel
        [records] = FileStore(folder / "store").record_sets()
        [record] = records.records
        [config] = [c for c in tuned.configs if describe(c) == record.winner.config]
        generated, generate = [], generated_code._generate
        def count(compilation):
            generated.append(compilation)
            return generate(compilation)
        generated_code._generate = count
        edited = import_anew(folder / "kernels.py", kernel.source.replace("- 4", "- 5")).k
        for function in edited, edited, tuned.fn, tuned.fn:
            asked = function, record.launches, record.winner.config, config
            print(generated_code.generates_equal_code(*asked), len(generated))
    """
    done = fork_python(code, str(tmp_path), TRITON_INTERPRET="0")
    assert done.stdout == "False 1\nFalse 1\nTrue 2\nTrue 3\n"

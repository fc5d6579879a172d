"""The shipped attention records: of the current code, and complete."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support.processes import fork_python, run_command

from dejavu_cache.attention import records as shipped
from dejavu_cache.attention.search_space import KEYS, METHOD
from dejavu_cache.attention.sweep_suite import KERNELS, PRESETS, lengths, scenario_arguments, suite
from dejavu_cache.model.scenario import Context, Problem
from dejavu_cache.prewarm.build import Compiler, PrewarmSpec
from dejavu_cache.runtime.launch_recorder import LAUNCH_METHOD
from dejavu_cache.stores import FileStore, shipped_stores
from dejavu_cache.triton_internals.identity import kernel_name

ROOT = Path(__file__).resolve().parents[2]
PLAN = json.loads((ROOT / "tools" / "shipped_records.json").read_text(encoding="utf-8"))
"""What `make shipped` sweeps."""

SHIPPED = ("qblock", "segmented", "static_grid")


def problem(tuned: Any) -> Problem:
    """Return the problem that the decorator derives from its keys, buckets and method on a GPU."""
    return Problem(
        keys=tuned.declaration.scenario_key.keys,
        buckets=tuned.declaration.options["buckets"],
        method=METHOD,
    )


def contexts(name: str) -> tuple[FileStore, list[Context]]:
    """Return the shipped store and a kernel's tuned contexts, without the recorded launches."""
    store = FileStore(Path(shipped.__path__[0]), read_only=True)
    every = store.contexts(kernel_name(KERNELS[name]))
    return store, [recorded for recorded in every if recorded.problem.method != LAUNCH_METHOD]


def test_the_library_finds_them_whole_and_small() -> None:
    store, _ = contexts("qblock")
    assert store.url in [found.url for found in shipped_stores()]
    assert not store.problems()
    assert sum(path.stat().st_size for path in store.root.rglob("*.gz")) < 1 << 20


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="they are of Triton 3.6")
def test_they_are_of_the_code_as_it_is() -> None:
    code = """
        from dejavu_cache.attention.sweep_suite import KERNELS
        from dejavu_cache.triton_internals.identity import identify
        for kernel in KERNELS.values():
            print(identify(kernel.fn, ()).source)
    """
    sources = fork_python(code, TRITON_INTERPRET="0").stdout.split()
    for name, source in zip(KERNELS, sources, strict=True):
        _, recorded = contexts(name)
        assert bool(recorded) == (name in SHIPPED)
        assert all(context.kernel.source == source for context in recorded)
        assert all(context.problem == problem(KERNELS[name]) for context in recorded)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_scenario_has_a_winner_that_was_timed(name: str) -> None:
    store, recorded_contexts = contexts(name)
    assert recorded_contexts
    for context in recorded_contexts:
        for record in store.records(context):
            assert record.winner is not None
            assert record.by_config[record.winner.config].median is not None


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="they are of Triton 3.6")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_all_of_them_can_be_compiled_ahead(tmp_path: Path) -> None:
    spec = PrewarmSpec(
        modules=("dejavu_cache.attention",),
        store=tmp_path.as_uri(),
        devices=("NVIDIA H200", "NVIDIA H100 80GB HBM3"),
        folder=str(tmp_path / "folder"),
    )
    with closing(Compiler(spec)) as process:
        plan = process.plan()
    assert plan.notes == ()
    planned = plan.manifest.kernels
    scenarios = {kernel.name.rpartition(".")[2]: kernel.scenarios for kernel in planned}
    assert min(scenarios[f"{name}_kernel"] for name in ("segment", "qblock", "static_grid")) > 50
    assert {job.kernel for job in plan.jobs} == {kernel.name for kernel in planned}
    assert "dejavu_cache.attention.kernels.segmented.merge_kernel" in {
        job.kernel for job in plan.jobs
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_the_planned_sweeps_have_every_shipped_scenario(name: str) -> None:
    options = PLAN["options"]
    shape = (PRESETS[options["preset"]], int(options["page"]), torch.bfloat16)
    names = [
        case.name for sweep in PLAN["sweeps"] for case in suite.load_cases({**options, **sweep})
    ]
    planned = {
        tuple(scenario_arguments(name, composition, shape).values())
        for composition in lengths()
        if f"{name} {composition.name}" in names
    }
    store, recorded_contexts = contexts(name)
    recorded = {
        tuple(record.scenario.args[key] for key in KEYS)
        for context in recorded_contexts
        for record in store.records(context)
    }
    assert len(recorded) > 90
    assert recorded <= planned


def test_make_shipped_plans_the_sweeps() -> None:
    script = ROOT / "tools" / "ship_attention_records.py"
    *sweeps, gc = run_command(sys.executable, script, "--dry-run").stdout.splitlines()
    sweep = "dejavu-cache sweep dejavu_cache.attention --option=preset=llama3-8b "
    assert all(line.startswith(sweep) for line in sweeps)
    assert gc.startswith("dejavu-cache gc ")
    assert all(
        line.endswith(f"--store {(ROOT / PLAN['store']).as_uri()}") for line in (*sweeps, gc)
    )

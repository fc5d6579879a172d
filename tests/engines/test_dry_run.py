"""Prewarming a vLLM engine: from its model's config, and from what a start recorded."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import torch
from support.checkout import ROOT
from support.command_line import run_cli
from support.processes import dejavu, fork_program

from dejavu_cache.engines.vllm.dry_run import EngineSettings, describe
from dejavu_cache.engines.vllm.planned_attention import LayerShape
from dejavu_cache.prewarm.build import Compiler, PrewarmSpec
from dejavu_cache.stores.manifest import read_manifest

LLAMA = ROOT / "benchmarks/vllm_engine/models/llama3-8b"
CONFIG = {"num_attention_heads": 32, "hidden_size": 2048, "max_position_embeddings": 4096}


def test_a_plan_has_what_attention_launches_for_a_model_on_each_gpu(tmp_path: Path) -> None:
    """From an empty store, and for a GPU of which there are no records."""
    spec = PrewarmSpec(
        modules=("dejavu_cache.attention",),
        store=tmp_path.as_uri(),
        devices=("NVIDIA H100 80GB HBM3", "NVIDIA H200"),
        folder=str(tmp_path / "folder"),
        engine="vllm",
        options={"model": str(LLAMA), "max-model-len": "16384", "max-num-seqs": "64"},
    )
    with closing(Compiler(spec)) as process:
        plan = process.plan()
    assert (plan.notes, plan.fallbacks) == ((), ())
    assert Counter(job.kernel.rpartition(".")[2] for job in plan.jobs) == {
        "few_sequences_kernel": 2,
        "merge_kernel": 1,
        "schedule_kernel": 5,
        "hopper_kernel": 4,
        "write_cache_kernel": 1,
    }


@pytest.mark.parametrize(
    ("more", "options", "heads", "windows", "context"),
    [
        ({}, {}, (32, 32, 64), [-1], 4096),
        ({"num_key_value_heads": 8}, {"tensor-parallel-size": "4"}, (8, 2, 64), [-1], 4096),
        ({"num_key_value_heads": 2}, {"tensor-parallel-size": "4"}, (8, 1, 64), [-1], 4096),
        ({"head_dim": 128, "sliding_window": 128}, {}, (32, 32, 128), [-1, 127], 4096),
        ({"sliding_window": 128, "use_sliding_window": False}, {}, (32, 32, 64), [-1], 4096),
        ({"text_config": {"head_dim": 32}}, {"max-model-len": "64"}, (32, 32, 32), [-1], 64),
    ],
)  # fmt: skip
def test_a_model_s_config_says_what_its_layers_ask(
    more: dict[str, object], options: dict[str, str], heads: tuple[int, int, int],
    windows: list[int], context: int,
) -> None:  # fmt: skip
    config = {**CONFIG, **more}
    settings = EngineSettings.model_validate({"model": "", "kv-cache-dtype": "fp8", **options})
    shape, features, limits = describe(settings, {**config, **config.get("text_config", {})})  # type: ignore[dict-item]
    assert shape == LayerShape(*heads, 16, torch.bfloat16, torch.float8_e4m3fn)
    assert [layer.window[0] for layer in features] == windows
    assert limits.max_context == context


def test_what_a_worker_compiled_is_prewarmed_and_found(tmp_path: Path) -> None:
    """Kernels of the engine's own, which nobody has decorated."""
    store, out, folder = tmp_path / "records", tmp_path / "out", tmp_path / "stand-in"

    def start(url: str, number: int = 48) -> tuple[list[bool], bool]:
        """Return whether the kernel was found, and whether a warning says that it was not."""
        done = fork_program(
            "start_compiling_engine.py", str(folder), str(number), DEJAVU_CACHE_URL=url,
            TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path / url.partition(":")[0]),
        )  # fmt: skip
        return json.loads(done.stdout), "1 kernels had to be compiled (fill)" in done.stderr

    assert start(store.as_uri()) == ([False], False)
    words = ("--engine", "vllm", "--device", "H100", "--store", store, "--out", out)
    made = dejavu("prewarm", *words, PYTHONPATH=str(folder))
    assert made.returncode == 0, made.stderr
    kernels = {kernel.name: kernel.binaries for kernel in read_manifest(out).kernels}
    assert kernels == {"vllm.v1.worker.gpu_worker.fill": 1}
    assert start(f"prewarmed://{out}") == ([True], False)
    assert start(f"prewarmed://{out}", 49) == ([False], True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--engine", "sglang"), "vllm"),
        (("--engine", "vllm", "products"), "name the modules of the kernels, or an --engine"),
        ((), "name the modules of the kernels, or an --engine"),
    ],
)
def test_what_is_prewarmed_is_named_once(
    words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    places = ("--store", tmp_path.as_uri(), "--out", tmp_path / "out")
    said = run_cli("prewarm", *words, "--device", "NVIDIA H200", *places)
    assert (said.returncode, expected in said.stderr) == (2, True), said.stderr

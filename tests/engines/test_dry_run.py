"""Prewarming a vLLM engine: from its model's config, and from what a start recorded."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import torch
from support.checkout import ROOT
from support.command_line import run_cli
from support.processes import dejavu, fork_program

from dejavu_cache.engines.vllm.dry_run import EngineSettings, describe, launch_all
from dejavu_cache.engines.vllm.planned_attention import LayerShape
from dejavu_cache.errors import SettingsError
from dejavu_cache.prewarm.build import Compiler, PrewarmSpec
from dejavu_cache.stores.manifest import read_manifest

LLAMA = ROOT / "benchmarks/vllm_engine/models/llama3-8b"


def test_a_plan_has_what_attention_launches_for_a_model_on_each_gpu(tmp_path: Path) -> None:
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
    counts = Counter(job.kernel.rpartition(".")[2] for job in plan.jobs)
    assert sorted(counts.items()) == [
        ("few_sequences_kernel", 2), ("hopper_kernel", 4), ("merge_kernel", 1),
        ("schedule_kernel", 5), ("write_cache_kernel", 1),
    ]  # fmt: skip


def test_a_model_s_config_says_what_its_layers_ask() -> None:
    config = {"num_attention_heads": 32, "num_key_value_heads": 2, "hidden_size": 2048}
    config |= {"max_position_embeddings": 4096, "sliding_window": 128}
    options = {"model": "", "kv-cache-dtype": "fp8", "tensor-parallel-size": "4"}
    shape, features, limits = describe(EngineSettings.model_validate(options), config)
    assert shape == LayerShape(8, 1, 64, 16, torch.bfloat16, torch.float8_e4m3fn)
    assert [layer.window for layer in features] == [(-1, -1), (127, 0)]
    assert limits.max_context == 4096


def test_what_a_plan_would_get_wrong_is_refused_by_name(tmp_path: Path) -> None:
    config, file = json.loads((LLAMA / "config.json").read_text()), tmp_path / "config.json"
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    for options, changed, problem in (
        ({"kv-cache-dtype": "fp9"}, {}, "kv-cache-dtype: Input should be 'auto', 'fp8'"),
        ({"tensor-parallel-size": "3"}, {"kv_lora_rank": 0}, "3 does not divide 32 heads"),
        ({"tensor-parallel-size": "4"}, {"num_key_value_heads": 6}, "4 neither divides 6 KV heads"),
        ({}, {"quantization_config": {"kv_cache_scheme": {"type": "float"}}}, "kv-cache-dtype"),
        ({}, {"text_config": {"num_key_value_heads": None}}, "text_config has no KV heads"),
        ({}, {"block_configs": [{"attention": {}}]}, "the model has block_configs"),
        ({}, {"attention_chunk_size": 8192}, "the model has attention_chunk_size"),
        ({}, {"hidden_size": 3}, "heads of 0 elements; attention takes multiples of 8 up"),
        ({"max-model-len": str(1 << 63)}, {}, "max-model-len: Input should be less than 2147483"),
        ({}, {"quantization_config": "fp8"}, "quantization_config: Input should be a valid dict"),
        ({}, {"text_config": [1]}, "Input should be a valid dict"),
        ({}, "[" * 9999, "Invalid JSON: recursion limit exceeded"),
        ({"model": str(tmp_path / "pipe")}, "", "neither a file nor a folder"),
    ):
        file.write_text(changed if isinstance(changed, str) else json.dumps(config | changed))
        settings = {"model": str(tmp_path / "link"), **options}
        named = rf"^the engine's options: .*{problem}.* \(model={settings['model']}\); without"
        with pytest.raises(SettingsError, match=named):
            launch_all(settings)


def test_what_a_worker_compiled_is_prewarmed_and_found(tmp_path: Path) -> None:
    store, out, folder = tmp_path / "records", tmp_path / "out", tmp_path / "stand-in"
    others, two = (tmp_path / "others").as_uri(), ("1, 16", "32, 1")

    def start(url: str, number: int = 48, sizes: str = "50, 3") -> tuple[int, bool]:
        """Return how many were compiled, and whether a warning says so."""
        compiled = tmp_path / f"{number} {sizes} {len(url)}"
        done = fork_program(
            "start_compiling_engine.py", str(folder), str(number), sizes, DEJAVU_CACHE_URL=url,
            TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(compiled),
        )  # fmt: skip
        return len([*compiled.rglob("*.cubin")]), "had to be compiled (fill)" in done.stderr

    for url in (others, f"{others}?read_only=1,{store.as_uri()}"):  # others' records are no reason
        assert {start(url, sizes=each) for each in two} == {(2, False)}
    words = ("--engine", "vllm", "--device", "H100", "--store", store, "--out", out)
    made = dejavu("prewarm", *words, PYTHONPATH=str(folder))
    assert made.returncode == 0, made.stderr
    names = sorted(kernel.name.rpartition(".")[2] for kernel in read_manifest(out).kernels)
    assert (names, start(f"prewarmed://{out}")) == (["fill", "write_cache_kernel"], (0, False))
    for name, launched in (("fill.cubin", "50, 3"), ("__grp__fill.json", "1, 16")):
        for file in out.rglob(name):
            file.write_bytes(b"altered")
        assert start(f"prewarmed://{out}", sizes=launched) == (1, False), "another line names it"
    assert start(f"prewarmed://{out}", 49) == (1, True)
    (folder / "vllm/v1/worker/gpu_worker.py").write_text("import nobody_has")
    made = dejavu("prewarm", *words[:-1], tmp_path / "another", PYTHONPATH=str(folder))
    assert "cannot be imported: install nobody_has" in made.stderr


def test_modules_or_an_engine_are_named(tmp_path: Path) -> None:
    places = ("--device", "H200", "--store", tmp_path.as_uri(), "--out", tmp_path / "out")
    for words in ((), ("--engine", "vllm", "products")):
        said = run_cli("prewarm", *words, *places)
        assert "name the modules of the kernels, or an --engine" in said.stderr
    said = run_cli("prewarm", "products", "--option", "model=m", *places)
    assert "an --option is a setting of an --engine" in said.stderr
    said = run_cli("prewarm", "--engine", "vllm", *places[:1], "NVIDIA H200", *places[2:])
    assert "start it once with this store" in said.stderr

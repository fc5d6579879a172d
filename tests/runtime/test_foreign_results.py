"""Results of other tools are taken over from files as these tools write them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.command_line import run_cli

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.integrations.foreign_files import read_foreign_files
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import FileStore

CONFIGS = [
    triton.Config({"BLOCK_SIZE_M": m, "GROUP_SIZE_M": g}, num_warps=w)
    for m in (16, 64)
    for g in (1, 16)
    for w in (4, 8)
]


@triton.jit
def fused_moe_kernel(x, y, M, E, N, BLOCK_SIZE_M: tl.constexpr, GROUP_SIZE_M: tl.constexpr):
    pass


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=4))
    return path


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """As in vLLM's `fused_moe/configs`: shortened."""
    config = {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
    other = {**config, "BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 16, "num_warps": 8}
    start = "E=128,N=192,device_name=Triton_interpreter"
    stamp = {"triton_version": triton.__version__}
    write(tmp_path / "vllm" / f"{start}.json", {**stamp, "1": config, "64": other})
    quantized = {**stamp, "1": config, "64": {**other, "GROUP_SIZE_M": 1}}
    write(tmp_path / "vllm" / f"{start},dtype=fp8_w8a8.json", quantized)
    blocks = {**stamp, "64": config}
    write(tmp_path / "vllm" / f"{start},dtype=fp8_w8a8,block_shape=[128,128].json", blocks)
    return tmp_path / "vllm"


@pytest.fixture
def triton_dejavu(tmp_path: Path) -> Path:
    """As triton-dejavu 0.7 writes it."""
    key = "('64', '128', '192', 'torch.float16', 'torch.float32')"
    config = (
        "BLOCK_SIZE_M: 64, GROUP_SIZE_M: 1, num_warps: 8, num_ctas: 1, num_stages: 3, "
        "num_buffers_warp_spec: 0, "
        "num_consumer_groups: 0, reg_dec_producer: 0, reg_inc_consumer: 0, maxnreg: None"
    )
    folder = (
        tmp_path
        / "dejavu"
        / "dejavu_0.7"
        / f"triton_{triton.__version__}"
        / "cuda_12.4"
        / "gpu_Triton_interpreter"
    )
    content = {
        "signature": "JITFunction(vllm.ops.moe:fused_moe_kernel)",
        "total_bench_time_s": 6.7,
        "evaluated_configs": 6,
        "keys": ["M", "E", "N"],
        "cache": {key: config},
        "timings": {key: [0.1367]},
        "timings_data": {
            "labels": ["ms"],
            "rep_t_ms": 100,
            "warmup_t_ms": 25,
            "cuda_graphs": False,
        },
    }
    write(
        folder
        / "fused_moe_kernel"
        / "autotune_config-2"
        / "code_version-5"
        / "default"
        / "cache.json",
        content,
    )
    return tmp_path / "dejavu"


@pytest.fixture
def fla(tmp_path: Path) -> Path:
    """As flash-linear-attention's config cache reads it."""
    key = [64, 128, 192, "torch.float16", "torch.float32"]
    config = {
        "kwargs": {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 16},
        "num_warps": 8,
        "num_ctas": 1,
        "num_stages": 3,
    }
    digest = hashlib.md5(json.dumps(key, separators=(",", ":")).encode()).hexdigest()
    content = {
        "kernel_name": "fused_moe_kernel",
        "triton_version": triton.__version__,
        "autotune_entries": {
            digest: {
                "autotune_key": key,
                "config": {**config, "maxnreg": None, "ir_override": None},
            }
        },
        "default_config": config,
    }
    write(tmp_path / "fla" / "Triton_interpreter" / "fused_moe_kernel.json", content)
    return tmp_path / "fla"


def resolved_config(store: Path, m: int = 64, **options: Any) -> tuple[str, dict[str, Any], int]:
    kernel = cached_autotune(CONFIGS, ["M", "E", "N"], store=store, mode="reuse", **options)(
        fused_moe_kernel
    )
    resolution = kernel.explain(torch.ones(1, dtype=torch.float16), torch.ones(1), m, 128, 192)
    return resolution.how, resolution.config.kwargs, resolution.config.num_warps


@pytest.mark.parametrize(
    ("origin", "best"),
    [("vllm", (64, 16, 8)), ("triton_dejavu", (64, 1, 8)), ("fla", (16, 16, 8))],
)
def test_what_was_best_stands_in(
    origin: str, best: tuple[int, int, int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, store = request.getfixturevalue(origin), tmp_path / "store"
    seen = run_cli("import", f"--{origin.replace('_', '-')}", folder, "--store", store)
    assert seen.returncode == 0, seen.stderr
    assert "for fused_moe_kernel kept in" in seen.stdout
    values = {"BLOCK_SIZE_M": best[0], "GROUP_SIZE_M": best[1]}
    assert resolved_config(store) == ("imported", values, best[2])
    assert resolved_config(store, 100, buckets={"M": Pow2()}) == ("imported", values, best[2])
    assert resolved_config(store, 128)[0] == "default", "another scenario"


@triton.jit
def quantized_kernel(
    x, y, M, E, N, group_n, group_k, BLOCK_SIZE_M: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    use_fp8_w8a8: tl.constexpr, use_int8_w8a16: tl.constexpr,
):  # fmt: skip
    pass


def test_tables_of_vllm_are_told_apart_by_quantization_and_blocks(
    vllm: Path, tmp_path: Path
) -> None:
    results = read_foreign_files("vllm", vllm)
    renamed = [result.model_copy(update={"function": "quantized_kernel"}) for result in results]
    store = FileStore(tmp_path / "store")
    store.put_imported(renamed)
    kernel = cached_autotune(CONFIGS, ["M", "E", "N"], store=store, mode="reuse")(quantized_kernel)

    def config_for(group: int, **flags: bool) -> Any:
        arguments = torch.ones(1), torch.ones(1), 64, 128, 192, group, group
        resolution = kernel.explain(*arguments, **flags)
        return resolution.config.kwargs if resolution.how == "imported" else None

    plain, fp8 = {"use_fp8_w8a8": False}, {"use_fp8_w8a8": True}
    other = {"use_int8_w8a16": False}
    assert config_for(0, **plain, **other) == {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 16}
    assert config_for(0, **fp8, **other) == {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 1}
    assert config_for(128, **fp8, **other) == {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1}
    assert config_for(64, **fp8, **other) is None
    assert config_for(0, **plain, use_int8_w8a16=True) is None


def test_every_kind_of_vllm_s_tables_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"BLOCK_SIZE_M": 16, "num_warps": 4}
    scaled = "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,64]"
    state = "headdim=64,dstate=128,device_name=NVIDIA_H200,cache_dtype=float32"
    write(tmp_path / f"{scaled}.json", {"16": config})
    write(tmp_path / "triton_3_4_0" / f"{state}.json", {"8": config})
    matmul, update = read_foreign_files("vllm", tmp_path)
    assert matmul.function == "_w8a8_triton_block_scaled_mm"
    assert matmul.named == {"N": "512", "K": "7168", "group_n": "128", "group_k": "64", "M": "16"}
    assert (update.function, update.triton) == ("_selective_scan_update_kernel", "3.4.0")
    assert update.named["dstate"] == "128"
    other = tmp_path / "odd=1,device_name=X.json"
    write(other, {"16": config})
    assert read_foreign_files("vllm", tmp_path) == [matmul, update]
    assert caplog.messages == [
        f"{other} is left out: its table, of odd, device_name, is of no known operation"
    ]


@pytest.mark.parametrize("version", ["3.2.0", "3.²", "9" * 5000], ids=len)
def test_results_of_another_triton_need_loose(
    triton_dejavu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Names lie in `keys`, in an order of their own, and dtypes may be missing."""
    (result,) = read_foreign_files("triton-dejavu", triton_dejavu)
    assert result.named == {"M": "64", "E": "128", "N": "192"}
    assert result.key == ("torch.float16", "torch.float32")
    store = FileStore(tmp_path / "store")
    turned = {"named": {"N": "192", "M": "64", "E": "128"}, "key": (), "triton": version}
    store.put_imported([result.model_copy(update=turned)])
    assert resolved_config(tmp_path / "store")[0] == "default"
    monkeypatch.setenv("DEJAVU_CACHE_TOOLCHAIN", "loose")
    current_settings.cache_clear()
    assert resolved_config(tmp_path / "store")[0] == "imported"
    current_settings.cache_clear()


def test_another_gpus_or_unknown_configs_do_not_stand_in(fla: Path, tmp_path: Path) -> None:
    (entry,) = read_foreign_files("fla", fla)
    store = FileStore(tmp_path / "store")
    elsewhere = entry.model_copy(update={"device": "NVIDIAH200"})
    odd = entry.timings[0].model_copy(
        update={"config": entry.timings[0].config.model_copy(update={"params": {"B": 1}})}
    )
    store.put_imported([elsewhere, entry.model_copy(update={"timings": (odd,)})])
    store.put_imported([elsewhere])
    assert len(list(store.imported("fused_moe_kernel"))) == 2
    assert resolved_config(tmp_path / "store")[0] == "default"


def test_names_can_be_translated(vllm: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = ["--rename", "fused_moe_kernel=my_kernel", "--rename", "M=tokens"]
    assert run_cli("import", "--vllm", vllm, *options, "--store", store).returncode == 0
    results = [
        result
        for result in FileStore(store).imported("my_kernel")
        if result.named["use_fp8_w8a8"] == "False"
    ]
    (first, _) = sorted(results, key=lambda result: int(result.named["tokens"]))
    sizes = {"E": "128", "N": "192", "tokens": "1"}
    assert {name: first.named[name] for name in sizes} == sizes
    assert "M" not in first.named


def test_tritons_own_files_are_read(tmp_path: Path) -> None:
    """Files as `TRITON_CACHE_AUTOTUNING=1` writes them; matching them to a kernel needs a GPU."""
    config = {
        "kwargs": {"BLOCK": 16},
        "num_warps": 4,
        "num_ctas": 1,
        "num_stages": 3,
        "maxnreg": None,
        "pre_hook": None,
    }
    slow = {**config, "kwargs": {"BLOCK": 32}, "ir_override": None}
    timings = [[slow, [0.3, 0.2, 0.4]], [config, [0.1, 0.09, 0.2]], [config, [float("inf")] * 3]]
    key = [100, "torch.float32", "torch.float32"]
    write(tmp_path / "ABC" / "add.autotune.json", {"key": key, "configs_timings": timings})
    (entry,) = read_foreign_files("triton", tmp_path)
    assert (entry.function, entry.key, entry.proof) == (
        "add",
        ("100", "torch.float32", "torch.float32"),
        "ABC",
    )
    assert [(timing.config.params["BLOCK"], timing.median) for timing in entry.timings] == [
        (16, 0.1),
        (32, 0.3),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name one thing to import"),
        (["--fla", "x", "--vllm", "y"], "name one thing to import"),
    ],
)
def test_what_cannot_be_imported_is_said(arguments: list[str], said: str) -> None:
    seen = run_cli("import", *arguments)
    assert (seen.returncode, said in seen.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [["--fla", "/no/such"], ["--vllm", "/no/such"], ["/no/such"]])
def test_what_is_missing_is_no_wrong_usage(arguments: list[str]) -> None:
    seen = run_cli("import", *arguments)
    assert (seen.returncode, "/no/such" in seen.stderr) == (3, True)


def test_a_folder_of_something_else_is_said(tmp_path: Path) -> None:
    write(tmp_path / "x.json", [1])
    seen = run_cli("import", "--fla", tmp_path)
    assert (seen.returncode, "does not hold what fla writes" in seen.stderr) == (3, True)


def test_an_import_says_how_many_results_can_match(
    triton_dejavu: Path, vllm: Path, tmp_path: Path
) -> None:
    (path,) = triton_dejavu.rglob("cache.json")
    content = json.loads(path.read_text())
    key, config = next(iter(content["cache"].items()))
    orphans = {**content, "cache": {"('64', '128')": config}, "timings": {}}
    del orphans["keys"]
    old = Path(str(path.parent).replace(f"triton_{triton.__version__}", "triton_3.1.0"))
    assert old != path.parent
    write(old / "cache.json", content)
    write(old / "orphans" / "cache.json", orphans)
    write(old / "ordered" / "cache.json", {**orphans, "cache": {key: config}})
    seen = run_cli("import", "--triton-dejavu", triton_dejavu, "--store", tmp_path / "store")
    assert "by the names of arguments, 1 by their order and dtypes, 1 never" in seen.stdout
    assert "others (3.1.0) serve with DEJAVU_CACHE_TOOLCHAIN=loose" in seen.stdout
    ours = run_cli("import", "--vllm", vllm, "--store", tmp_path / "store")
    assert "loose" not in ours.stdout

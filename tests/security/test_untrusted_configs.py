"""Configs in records only select among what a kernel declares, and compile nothing else."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support import kernels
from support.addition import CONFIGS, add_one, equal_times, make

from dejavu_cache import cached_autotune, open_store
from dejavu_cache.model.record import Pin, Record, RecordedLaunch
from dejavu_cache.model.scenario import Config, now
from dejavu_cache.settings import Mode
from dejavu_cache.triton_internals.compilation import (
    decode_type,
    decode_value,
    recreate_compilation,
    target_of,
    wheel,
)

OPTIONS = {"num_warps": 4, "num_ctas": 1, "num_stages": 3}

FOREIGN_CONFIGS = [
    Config(params={"BLOCK": 16}, options={**OPTIONS, "ir_override": "/tmp/evil.ttir"}),
    Config(params={"BLOCK": 16, "ir_override": "/tmp/evil.ttir"}, options=OPTIONS),
    Config(params={"BLOCK": 16, "extern_libs": "/tmp/evil.bc"}, options=OPTIONS),
    Config(params={"BLOCK": 4096}, options=OPTIONS),
    Config(params={"BLOCK": 16}, options={**OPTIONS, "num_warps": 32}),
    Config(params={"BLOCK": 16}, options={**OPTIONS, "pre_hook": "os.system"}),
    Config(params={"BLOCK": "16"}, options=OPTIONS),
    Config(params={"BLOCK": True}, options=OPTIONS),
    Config(params={}, options=OPTIONS),
    Config(),
]


def tune(store: Path) -> Any:
    """Launch the kernel as a new process would decorate it, and return it."""
    kernel = make(store=store, do_bench=equal_times)
    kernels.launch(kernel)
    return kernel


@pytest.mark.parametrize("config", FOREIGN_CONFIGS, ids=str)
def test_an_undeclared_pin_never_runs_and_never_stops_a_launch(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tune(tmp_path)
    store = open_store(str(tmp_path))
    (context,) = store.contexts()
    (record,) = store.records(context)
    store.put(context, [Record(scenario=record.scenario, pin=Pin(config=config, at=now()))])
    with caplog.at_level(logging.WARNING, "dejavu_cache"):
        kernel, _ = (tune(tmp_path) for _ in range(2))
    assert kernel.best_config in CONFIGS
    resolution = kernel.explain(torch.ones(1), torch.ones(1), 100)
    assert resolution.how == "exact"
    (warning,) = [line for line in caplog.messages if "pin" in line]
    assert "does not declare" in warning
    assert "`dejavu-cache pin --remove`" in warning


def test_a_kernel_that_declares_an_option_with_a_file_is_left_to_triton(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """File contents are no part of a record's key, so timings with them must not be shared."""
    configs = [triton.Config({"BLOCK": block}, ir_override="kernel.ttir") for block in (16, 32)]
    kernel = cached_autotune(configs=configs, key=["n"], store=tmp_path)(add_one)
    assert kernel.mode is Mode.OFF
    assert "ir_override" in caplog.text


def launch(**changed: Any) -> RecordedLaunch:
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}
    return RecordedLaunch.model_validate({"wheel": wheel(), "signature": signature, **changed})


def recreate(recorded: RecordedLaunch) -> Any:
    from triton.runtime.jit import JITFunction

    function = JITFunction(getattr(add_one, "fn", add_one))
    return recreate_compilation(function, recorded, {"BLOCK": 16}, target_of("sm_90"))


@pytest.mark.parametrize(
    "option",
    ["ir_override", "extern_libs", "ptx_options", "instrumentation_mode", "backend_name", "arch"],
)
def test_a_recorded_launch_sets_no_option_that_names_a_file_or_a_command(option: str) -> None:
    assert recreate(launch(options={"num_warps": 8})).key
    with pytest.raises(ValueError, match=option):
        recreate(launch(options={option: "/tmp/evil"}))


LAYOUT = (
    "tensordesc<bf16[16, 64],NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, "
    "rank=2, transposed=False, fp4_padded=False, cga_layout=[])>"
)


@pytest.mark.parametrize(
    "type_", ["i32", "*fp32", "*kbf16", "constexpr", "u1", "tensordesc<fp16[128, 64]>", LAYOUT]
)
def test_types_as_triton_writes_them_are_taken(type_: str) -> None:
    assert decode_type(type_) == type_


@pytest.mark.parametrize(
    "type_",
    [
        "tensordesc<fp16[16],__import__('os').system('id')>",
        "tensordesc<fp16[16],NVMMASharedLayout(rank=__import__('os').system('id'))>",
        "tensordesc<fp16[16],NVMMASharedLayout(rank=[x for x in ().__class__.__base__])>",
        "tensordesc<fp16[16],NVMMASharedLayout(rank=2).__class__>",
        "tensordesc<fp16[16],print(1)>",
        "*i32; import os",
        "",
        'json:["i32", "tensordesc<fp16[16],print(1)>"]',
        'json:{"jit": "os:system"}',
        'json:{"tuple": ["i32"]}',
        'json:{"tuple": "os:system", "items": ["i32"]}',
        'json:{"tuple": "random:Random", "items": []}',
        'json:{"tuple": "inspect:ArgInfo", "items": ["i32"]}',
        "json:7",
    ],
)
def test_a_type_that_triton_would_evaluate_is_refused(type_: str) -> None:
    """Triton evaluates the layout in a tensor descriptor's type as Python."""
    with pytest.raises(ValueError, match=r"type|not imported|does not know"):
        decode_type(type_)


def test_naming_a_function_in_a_lazy_module_does_not_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = type(sys)("lazy_module")
    asked: list[str] = []
    vars(module)["__getattr__"] = asked.append
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    with pytest.raises(ValueError, match="not imported"):
        decode_value('json:{"jit": "lazy_module:heavy.function"}')
    assert asked == []

"""Tune public kernels of which some configs are known to compute wrong results on sm_90.

    python benchmarks/known_wrong_config.py [--out FOLDER] [--seconds S]

Needs a GPU, and `vllm` or `mamba_ssm` on the path; neither is imported beyond the kernel's file.
vLLM leaves configs of `_chunk_scan_fwd_kernel` out on sm_90: "with num_stages > 1, Triton leaves
that wgmma running across the loop back-edge while the next iteration overwrites the registers".
Here the kernels have all configs that their libraries declare. Each config runs on drawn inputs,
and its results are compared with those of a float32 reference in PyTorch; then `cached_autotune`
and `triton.autotune` tune the kernel again and again, and what they chose is compared, too. Prints
a summary; `--out` writes known-wrong-config.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from library_process import skip_init
from reports import describe_run, write_report

from dejavu_cache import CheckOptions, cached_autotune
from dejavu_cache.stores import MemoryStore
from dejavu_cache.tuning.expected_results import describe_difference, scale_of

TUNES = 10
LAUNCHES = 10
"""Launches of each config per drawn input: a race need not show in each."""

DRAWS = 3
CHUNKS, CHUNK, HEADS, WIDTH, STATE = 16, 256, 32, 64, 128

VLLM_OPS = "vllm.model_executor.layers.mamba.ops"
MAMBA_OPS = "mamba_ssm.ops.triton"


class Inputs(NamedTuple):
    """Arguments of the kernels, and the right results.

    Attributes:
        products: [chunk, group, row, column], of C and B.
        x: [position, head, width].
        steps: [head, chunk, position in it].
        decay: cumulated logarithms, as `steps`.
        c: [position, group, state].
        states: [chunk, head, width, state], at the end of each chunk.
        skip: [head], the factor of x in the result.
        expected: as `x`.
    """

    products: torch.Tensor
    x: torch.Tensor
    steps: torch.Tensor
    decay: torch.Tensor
    c: torch.Tensor
    states: torch.Tensor
    skip: torch.Tensor
    expected: torch.Tensor


def draw_inputs(seed: int, device: str = "cuda") -> Inputs:
    """Draw arguments, and compute the right results in float32."""
    torch.manual_seed(seed)
    half: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    products = torch.randn(CHUNKS, 1, CHUNK, CHUNK, device=device)
    x = torch.randn(CHUNKS * CHUNK, HEADS, WIDTH, **half)
    steps = torch.rand(HEADS, CHUNKS, CHUNK, device=device)
    decay = -torch.cumsum(steps * torch.rand(HEADS, 1, 1, device=device) / 8, dim=-1)
    c = torch.randn(CHUNKS * CHUNK, 1, STATE, **half)
    states = torch.randn(CHUNKS, HEADS, WIDTH, STATE, **half)
    skip = torch.randn(HEADS, device=device)
    values = x.float().view(CHUNKS, CHUNK, HEADS, WIDTH)
    by_chunk = decay.transpose(0, 1)
    weights = torch.exp((by_chunk[..., :, None] - by_chunk[..., None, :]).clamp(max=0.0))
    weights = (weights * products * steps.transpose(0, 1)[..., None, :]).tril()
    inside = torch.einsum("chmk,ckhp->cmhp", weights, values)
    previous = torch.cat([torch.zeros_like(states[:1]), states[:-1]]).float()
    rows = c.float().view(CHUNKS, CHUNK, STATE)
    before = torch.einsum("cmn,chpn->cmhp", rows, previous)
    before *= torch.exp(by_chunk).transpose(1, 2)[..., None]
    expected = inside + before + values * skip[:, None]
    return Inputs(products, x, steps, decay, c, states, skip, expected.reshape(x.shape).to(x.dtype))


@dataclass(frozen=True)
class KnownKernel:
    """A library's kernel.

    Attributes:
        name: the library, and what is declared to `cached_autotune`.
        tuner: the library's own autotuner.
        launch: launches a decorated kernel in place of it, and returns the results.
        check: declarations to `cached_autotune`.
    """

    name: str
    tuner: Any
    launch: Callable[[Any, Inputs], torch.Tensor]
    check: Callable[[Inputs], CheckOptions] = lambda inputs: CheckOptions()

    def decorate(self, autotune: Callable[..., Any], configs: list[Any], **options: Any) -> Any:
        """Return the bare kernel with an autotuner of some configs."""
        return autotune(configs=configs, key=list(self.tuner.keys), **options)(self.tuner.fn)


def load_without_init(module: str, stubs: Mapping[str, Mapping[str, Any]]) -> Any:
    """Import a module without the `__init__` of its packages, and with stubs of other modules."""
    *packages, _ = module.split(".")
    skip_init(accumulate(packages, "{}.{}".format))
    for name, content in stubs.items():
        stub = types.ModuleType(name)
        stub.__dict__.update(content)
        sys.modules[name] = stub
    return importlib.import_module(module)


def vllm_kernel() -> KnownKernel:
    """Return vLLM's kernel with all of its configs: told of another device, it drops none."""
    platform_stub = types.SimpleNamespace(is_cuda=lambda: False)
    stubs: dict[str, dict[str, Any]] = {
        "vllm.platforms": {"current_platform": platform_stub},
        "vllm.triton_utils": {"tl": triton.language, "triton": triton},
    }
    module = load_without_init(f"{VLLM_OPS}.ssd_chunk_scan", stubs)

    def launch(kernel: Any, inputs: Inputs) -> torch.Tensor:
        out = torch.full_like(inputs.x, float("nan"))
        device = out.device
        bounds = torch.arange(CHUNKS + 1, device=device, dtype=torch.int32) * CHUNK
        sequences = torch.zeros(CHUNKS, device=device, dtype=torch.int32)
        module.launch_autotuned = lambda _, grid, **arguments: kernel[grid](**arguments)
        module._chunk_scan_fwd_kernel = kernel
        products, x, steps, decay, c, states, skip, _ = inputs
        module._chunk_scan_fwd(products, x, steps, decay, c, states, bounds, out, sequences, D=skip)
        return out

    return KnownKernel("vllm", module._chunk_scan_fwd_kernel, launch)


def mamba_kernels() -> list[KnownKernel]:
    """Return mamba_ssm's kernel, by its own default and by a declared reference."""
    module = load_without_init(f"{MAMBA_OPS}.ssd_chunk_scan", {})

    def launch(kernel: Any, inputs: Inputs) -> torch.Tensor:
        module._chunk_scan_fwd_kernel = kernel
        products, x, steps, decay, c, states, skip, _ = inputs
        previous = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        batched = (tensor[None] for tensor in (products, x, steps, decay, c, previous))
        out: torch.Tensor = module._chunk_scan_fwd(*batched, D=skip)[0]
        return out[0]

    def declare_reference(inputs: Inputs) -> CheckOptions:
        return CheckOptions(reference=lambda named: named["out_ptr"].copy_(inputs.expected[None]))

    tuner = module._chunk_scan_fwd_kernel
    return [
        KnownKernel("mamba_ssm", tuner, launch),
        KnownKernel("mamba_ssm, a reference declared", tuner, launch, declare_reference),
    ]


def is_dropped(config: Any) -> bool:
    """Return whether vLLM leaves a config out on sm_90."""
    is_warpgroup = config.num_warps % 4 == 0 and config.kwargs["BLOCK_SIZE_M"] % 64 == 0
    return is_warpgroup and config.num_stages > 1


class ChunkScanTrial:
    """Trial of one kernel: its configs one by one, and tunes of it."""

    def __init__(self, kernel: KnownKernel, draws: list[Inputs], until: float) -> None:
        self.kernel = kernel
        self.draws = draws
        self.until = until
        self.by_text = {str(config): config for config in kernel.tuner.configs}
        self.configs: dict[str, dict[str, Any]] = {}

    def measure(self) -> Iterator[dict[str, Any]]:
        """Yield what is known so far after each step."""
        content: dict[str, Any] = {
            "kernel": self.kernel.name,
            "default": next(iter(self.by_text)),
            "dropped by vLLM on sm_90": sum(map(is_dropped, self.by_text.values())),
            "configs": self.configs,
        }
        content["cached_autotune"] = [self.tune_here()]  # compiles all configs at once
        yield content
        for text, config in self.by_text.items():
            self.configs[text] = {"dropped": is_dropped(config), **self.run(config)}
        content["wrong configs"] = [text for text, row in self.configs.items() if row["wrong"]]
        content["wrong but not dropped"] = [
            text for text in content["wrong configs"] if not is_dropped(self.by_text[text])
        ]
        yield content
        while len(content["cached_autotune"]) < TUNES and time.monotonic() < self.until:
            content["cached_autotune"].append(self.tune_here())
        content["triton.autotune"] = []
        while len(content["triton.autotune"]) < TUNES and time.monotonic() < self.until:
            content["triton.autotune"].append(self.tune_upstream())
            yield content
        yield content

    def run(self, config: Any) -> dict[str, Any]:
        """Launch a config on all draws; return how often it was wrong, and how."""
        decorated = self.kernel.decorate(triton.autotune, [config])
        evidence: list[str] = []
        try:
            for inputs in self.draws:
                for _ in range(LAUNCHES):
                    out = self.kernel.launch(decorated, inputs)
                    scale = scale_of(inputs.expected)
                    difference = describe_difference([(out, inputs.expected)], scale)
                    evidence += [difference] if difference else []
        except triton.runtime.errors.OutOfResources as error:
            return {"wrong": 0, "error": str(error)}
        except Exception as error:
            return {"wrong": len(evidence), "error": repr(error)[:500]}
        return {"wrong": len(evidence), **({"evidence": evidence[0]} if evidence else {})}

    def tune_here(self) -> dict[str, Any]:
        store, inputs = MemoryStore(), self.draws[0]
        check = self.kernel.check(inputs)
        configs = list(self.by_text.values())
        decorated = self.kernel.decorate(cached_autotune, configs, store=store, check=check)
        failures = {}
        row = self.tune(decorated)
        for records in store.record_sets():
            for measurement in records.records[0].measurements:
                if measurement.is_wrong and measurement.failure:
                    failures[str(measurement.config)] = measurement.failure.reason
        return {**row, "found wrong": failures}

    def tune_upstream(self) -> dict[str, Any]:
        return self.tune(self.kernel.decorate(triton.autotune, list(self.by_text.values())))

    def tune(self, decorated: Any) -> dict[str, Any]:
        start = time.perf_counter()
        self.kernel.launch(decorated, self.draws[0])
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        chosen = decorated.best_config
        known_wrong = self.run(chosen)
        return {"seconds": round(seconds, 2), "chosen": str(chosen), **known_wrong}


def summarize(content: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of one kernel."""
    if "error" in content:
        return content
    rows = content["configs"]
    summary: dict[str, Any] = {
        "kernel": content["kernel"],
        "configs": len(rows),
        "that cannot run": sum("error" in row for row in rows.values()),
        "dropped by vLLM on sm_90": content["dropped by vLLM on sm_90"],
        "wrong here": {
            text: f"{rows[text]['wrong']} of {LAUNCHES * DRAWS} launches: {rows[text]['evidence']}"
            for text in content.get("wrong configs", ())
            if "evidence" in rows[text]
        },
        "wrong but not dropped": content.get("wrong but not dropped", []),
        "default is wrong": bool(rows.get(content["default"], {}).get("wrong")),
    }
    for side in ("cached_autotune", "triton.autotune"):
        tunes = content.get(side, [])
        wrong = set(content.get("wrong configs", ()))
        chosen = Counter(tune["chosen"] for tune in tunes)
        summary[side] = {
            "tunes": len(tunes),
            "chose a wrong config": sum(
                bool(tune["wrong"]) or tune["chosen"] in wrong for tune in tunes
            ),
            "chosen": dict(chosen),
        }
    tunes_here = content.get("cached_autotune", ())
    found = Counter(text for tune in tunes_here for text in tune["found wrong"])
    summary["found wrong by the check"] = dict(found)
    return summary


def load_kernels() -> Iterator[KnownKernel | dict[str, Any]]:
    """Yield the kernels of the libraries, or why they cannot be had."""
    for name, load in {"vllm": lambda: [vllm_kernel()], "mamba_ssm": mamba_kernels}.items():
        try:
            yield from load()
        except Exception:
            yield {"kernel": name, "error": traceback.format_exc()[-800:]}


def write(folder: Path | None, report: dict[str, Any]) -> None:
    """Write the report, if a folder was named."""
    if folder:
        write_report(folder, "known-wrong-config.json", report)


def main() -> None:
    """Try the kernels, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    start = time.monotonic()
    draws = [draw_inputs(seed) for seed in range(DRAWS)]
    report: dict[str, Any] = {
        **describe_run(),
        "capability": torch.cuda.get_device_capability(),
        "kernels": [],
    }
    kernels = list(load_kernels())
    for number, kernel in enumerate(kernels, 1):
        content: dict[str, Any] = {}
        report["kernels"].append(content)
        if isinstance(kernel, dict):
            content.update(kernel)
        else:
            until = start + options.seconds * number / len(kernels)
            try:
                for state in ChunkScanTrial(kernel, draws, until).measure():
                    content.update(state)
                    write(options.out, report)
            except Exception:
                content["failed"] = traceback.format_exc()[-1500:]
        print(json.dumps(summarize(content), indent=1), flush=True)
        print(content.get("failed", ""), end="")
    write(options.out, report)
    wrong = sum(len(content.get("wrong configs", ())) for content in report["kernels"])
    if not wrong:
        print("No config is wrong on this GPU with this Triton.")


if __name__ == "__main__":
    main()

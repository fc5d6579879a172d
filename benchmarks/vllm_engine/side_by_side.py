"""Run vLLM engines side by side, in turns: with this project's attention, FA3's, and Triton's.

    bash benchmarks/vllm_engine/go.sh PLAN [SECONDS]

writes OUT/PLAN.json and a log of each engine. Plans: `speed`, `figure9`, `day`, `full` (these
three), `float8`, `profile`, `cold`, `prewarmed`, `refused` (after that), `by_another`, `mamba`,
`gated_delta`, `compiled`.
Engines that are compared take turns in one run, for clocks and temperatures differ. `profile` also
runs the checkouts whose folders `OTHER_CHECKOUTS` names, separated by colons. `ENGINES` limits
`speed` and `full` to some: fa3,ours.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from engine_process import HERE, OUT, PLAN, RESULTS, VLLM, Engine, keep, log, seconds_left

from dejavu_cache.model.scenario import Device
from dejavu_cache.prewarm.build import PrewarmSpec, prewarm
from dejavu_cache.prewarm.plan import builder_environment
from dejavu_cache.stores import FileStore
from dejavu_cache.stores.manifest import MANIFEST, read_manifest

ENGINES = os.environ.get("ENGINES", "fa3,ours,triton").split(",")
BACKENDS = {"fa3": "FLASH_ATTN", "ours": "CUSTOM", "triton": "TRITON_ATTN"}

PROFILED = (
    ("decode", 1, 500),
    ("decode", 8, 4000),
    ("decode", 32, 2000),
    ("prefill", 1, 8000),
    ("decode", 1, 6000),
)
"""Kind of each profiled batch, its requests, and tokens of their prompts."""

SPEEDS = {
    ("decode", 8, 4000, 100): 2,
    ("decode", 32, 2000, 120): 2,
    ("prefill", 1, 8000): 2,
    ("prefill", 8, 1000): 2,
    ("prefill", 1, 500): 45,
    ("decode", 1, 500, 100): 2,
}
"""What is timed, and in how many turns.

A prompt of 500 tokens takes as long as the host needs for its launches. That varies between 14 and
33 ms, for many turns on end, so few turns say nothing.
"""

LENGTHS = (7, 130, 517, 2049, 8000)
"""Tokens of the first prompts after a cold start."""

FIRST_LENGTHS = (7, 130, 2048, 2049)
"""Tokens of a start's first prompts; the recorded one has all but the multiple of 16."""

KINDS_AT_ONCE = {"recorded": [1, 8], "by-model-0": [1, 11, 16]}
"""Requests of each kind at a time, by the start's name."""

PROFILED_LENGTHS = (7, 130, 517, 2048)
"""Tokens of first prompts that are profiled, in turns by CUDA's and by Python's calls."""

KNOWN_MODELS = VLLM / "known-models"
"""What vLLM's first start finds out of models, in 20 s; the others get a copy."""

MODEL = HERE / "models" / "llama3-8b"
LIMITS = {"max-model-len": "16384", "max-num-batched-tokens": "8192", "max-num-seqs": "64"}
"""Limits of every engine, by vLLM's names."""


def start(*names: str, **options: Any) -> list[Engine]:
    """Start engines at the same time, and give them the same weights."""
    return make_ready([Engine(name, BACKENDS[name], options=options) for name in names])


def make_ready(engines: list[Engine]) -> list[Engine]:
    """Wait until engines have started, and give them the same weights."""
    for engine in engines:
        engine.wait_until_started()
    for engine in engines:
        engine.tell("weights")
    return engines


def start_one(*arguments: Any, **options: Any) -> Engine:
    engine = Engine(*arguments, **options)
    engine.wait_until_started()
    return engine


def shares(times: dict[str, Any]) -> dict[str, float]:
    """Return each engine's speed as a share of the first one's."""
    positive_times = {name: value for name, value in times.items() if value}
    first = next(iter(positive_times.values()), None)
    return (
        {name: round(first / value, 4) for name, value in positive_times.items()} if first else {}
    )


def compare_agreement(engines: list[Engine]) -> None:
    """Keep how far each engine's greedy tokens and log probabilities are from the first one's."""
    answers = {engine.name: engine.tell("agree") for engine in engines}
    first, *others = [name for name in answers if answers[name]] or [""]
    for name in others:
        for length, expected in answers[first].items():
            actual = answers[name][length]
            pairs = list(zip(expected["tokens"], actual["tokens"], strict=False))
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            worst = 0.0
            tops = list(zip(expected["tops"], actual["tops"], strict=False))
            # The first token that differs is drawn in the same context, and counts too.
            for likely, other in tops[: same + 1]:
                theirs_by_token = dict(map(tuple, other))
                gaps = [
                    abs(theirs_by_token[token] - prob)
                    for token, prob in likely
                    if token in theirs_by_token
                ]
                worst = max([worst, *gaps])
            keep("agree", name, length, value={"same": same, "of": len(pairs), "logprob": worst})


def compare_speed(engines: list[Engine], speeds: dict[tuple[Any, ...], int] = SPEEDS) -> None:
    for command, turns in speeds.items():
        times: dict[str, list[float]] = {engine.name: [] for engine in engines}
        for turn in range(turns):
            for engine in engines[:: 1 - 2 * (turn % 2)]:
                if answer := engine.tell(*command):
                    times[engine.name].append(answer["ms"])
        middle = {
            name: statistics.median_low(values) if values else None
            for name, values in times.items()
        }
        least = {name: min(values, default=None) for name, values in times.items()}
        value = {"ms": middle, "share": shares(middle), "least_ms": least}
        keep("speed", " ".join(map(str, command)), value=value)


def compare_long_request(engines: list[Engine], tokens: int = 12800, turn: int = 100) -> None:
    seconds = {engine.name: 0.0 for engine in engines}
    done = 0
    while done < tokens and seconds_left() > 10:
        for engine in engines:
            answer = engine.tell("long", turn)
            seconds[engine.name] += answer["seconds"] if answer else float("nan")
        done += turn
        if done in (100, 200, 400, 800, 1600) or done % 3200 == 0:
            keep("figure9", str(done), value={"s": dict(seconds), "share": shares(seconds)})


def compare_days(engines: list[Engine], days: int = 1, steps: int = 2400, turn: int = 100) -> None:
    """Keep throughput and durations of the steps of a drawn day, which engines run several times.

    Every engine meets the same batch in a step of each day, so the median of a step's durations
    leaves out what the host does beside one of them.
    """
    tokens = {engine.name: 0 for engine in engines}
    times: dict[str, list[list[float]]] = {engine.name: [] for engine in engines}
    prompts: list[int] = []
    for _ in range(days):
        done = 0
        answers: dict[str, list[Any]] = {engine.name: [] for engine in engines}
        while done < steps and seconds_left() > 10:
            for engine in engines:
                answers[engine.name].append(engine.tell("day", turn, steps))
            done += turn
        for engine in engines:
            engine.tell("end_day")  # what follows meets no requests of the day's
        if done < steps or not all(all(parts) for parts in answers.values()):
            break  # a day that time or a fault ended has other steps
        for name, parts in answers.items():
            tokens[name] += sum(part["tokens"] for part in parts)
            times[name].append([seconds for part in parts for seconds in part["times"]])
            prompts = [number for part in parts for number in part["prompts"]]
    usual = {
        name: [statistics.median(step) for step in zip(*taken, strict=True)]
        for name, taken in times.items()
    }
    for name, taken in times.items():
        every = sorted(seconds for day in taken for seconds in day) or [0.0]
        value = {
            "days": len(taken),
            "steps": len(usual[name]),
            "tokens": tokens[name],
            "tokens_per_s": round(tokens[name] / max(sum(every), 1e-9), 1),
            "median_ms": round(1e3 * statistics.median(every), 3),
            "p99_ms": percentile_99(every),
            "p99_of_medians_ms": percentile_99(sorted(usual[name]) or [0.0]),
            "p99_of_days_ms": [percentile_99(sorted(day)) for day in taken],
            "longest_ms": round(1e3 * every[-1], 2),
        }
        keep("day", name, value=value)
    keep("day", "slowest", value=slowest_steps(usual, prompts))


def percentile_99(ordered: list[float]) -> float:
    """Return the 99th percentile of durations that are in order, in milliseconds."""
    return round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 3)


def slowest_steps(
    times: dict[str, list[float]], prompts: list[int], count: int = 48
) -> list[dict[str, Any]]:
    """Return the slowest steps of the first engine, with every engine's median milliseconds."""
    first = next(iter(times.values()))
    order = sorted(range(min(map(len, times.values()))), key=lambda step: -first[step])
    return [
        {
            "step": step,
            "prompt_tokens": prompts[step],
            "ms": {name: round(1e3 * taken[step], 2) for name, taken in times.items()},
        }
        for step in order[:count]
    ]


def end(engines: list[Engine]) -> None:
    for engine in engines:
        engine.end()


def run_speed() -> None:
    engines = start(*ENGINES)
    compare_agreement(engines)
    compare_speed(engines)
    end(engines)


def run_float8() -> None:
    """Compare speed with that of an engine whose cache is float8, which rounds keys and values."""
    engines = [Engine(name, BACKENDS[name]) for name in ("fa3", "ours")]
    engines.append(Engine("float8", BACKENDS["ours"], options={"kv_cache_dtype": "fp8"}))
    make_ready(engines)
    compare_agreement(engines)
    compare_speed(engines)
    end(engines)


def run_profile() -> None:
    """Record the time of steps of decoding and of prompts, and the GPU time of their kernels."""
    engines = [Engine(name, BACKENDS[name]) for name in ("fa3", "ours")]
    others = filter(None, os.environ.get("OTHER_CHECKOUTS", "").split(os.pathsep))
    for number, other in enumerate(others, 1):
        paths = [other, f"{other}/client", os.environ["PYTHONPATH"]]
        name = f"other-{number}-{Path(other).name}"
        engines.append(Engine(name, BACKENDS["ours"], PYTHONPATH=os.pathsep.join(paths)))
    make_ready(engines)
    for kind, count, prompt in PROFILED:
        batch, options = f"{kind} {count} x {prompt}", [100] if kind == "decode" else []
        for turn in ("first", "second"):
            for engine in engines:
                answer = engine.tell(kind, count, prompt, *options)
                keep("profile", batch, turn, engine.name, value=answer)
        for engine in engines:
            answer = engine.tell(f"profile_{kind}", count, prompt)
            keep("profile", batch, "kernels", engine.name, value=answer)
    end(engines)


def run_figure9() -> None:
    engines = start("fa3", "ours")
    compare_long_request(engines)
    end(engines)


def run_day() -> None:
    engines = start("fa3", "ours")
    compare_days(engines, days=3)
    end(engines)


def run_full() -> None:
    engines = start(*ENGINES)
    compare_agreement(engines)
    compare_speed(engines)
    both, others = engines[:2], engines[2:]
    end(others)
    compare_days(both)
    compare_long_request(both)
    end(both)


def run_cold() -> None:
    """Start with empty caches twice; what is benchmarked or compiled, and the first prompts."""
    for number in ("first", "second"):
        engine = start_one(f"cold-{number}", "CUSTOM", cache="cold")
        for length in LENGTHS:
            keep("cold", number, str(length), value=engine.tell("prefill", 1, length, 2))
        engine.end()


def time_start(
    name: str,
    backend: str,
    cache: str,
    url: str = "",
    profiled: bool = False,
    model: str = MODEL.name,
    **variables: str,
) -> str:
    """Start an engine; keep what it compiled, its seconds and its first prompts.

    Each prompt is given twice: `first_ms`, and then `ms`. Returns the GPU's name.
    """
    own = VLLM / "caches" / cache
    if KNOWN_MODELS.is_dir() and not (own / "vllm").is_dir():
        shutil.copytree(KNOWN_MODELS, own / "vllm")
    if url:
        variables["DEJAVU_CACHE_URL"] = url
    engine = start_one(name, backend, model, cache=cache, **variables)
    keep_start(name)
    for length in PROFILED_LENGTHS if profiled else FIRST_LENGTHS:
        command = ("profile_first", length) if profiled else ("prefill", 1, length, 1)
        if name != "recorded" or length % 16:
            keep("prompts", name, str(length), value=engine.tell(*command))
    if counts := KINDS_AT_ONCE.get(name):
        keep("kinds", name, value=engine.tell("kinds", counts))
    if url.startswith("file:"):
        time.sleep(4)  # launches are recorded a moment after they are compiled
    engine.end()
    files = [path.suffix for path in (own / "triton").rglob("*.*")]
    keep("files in Triton's cache", name, value={end: files.count(end) for end in set(files)})
    if not KNOWN_MODELS.is_dir():
        shutil.copytree(own / "vllm", KNOWN_MODELS)
    return str(RESULTS["start"][name]["gpu"])


def keep_start(name: str) -> None:
    """Keep how long a started engine took to initialise, and what it said of its kernels."""
    said = (OUT / f"{PLAN}-{name}.log").read_text()
    keep("init engine s", name, value=re.findall(r"init engine .*?([\d.]+) s(?:econds)?\b", said))
    told = [line for line in said.splitlines() if not line.startswith("RESULT")]
    lines = [line for line in told if "compiled" in line or "is ready" in line]
    keep("said", name, value=lines[:6])


def build_folder(name: str, gpu: str, store: Path, **options: str) -> str:
    """Prewarm a folder from a store, keep its time and size, and return its URL."""
    out, begin = VLLM / name, time.perf_counter()
    shutil.rmtree(out, ignore_errors=True)
    kernels = {context.kernel.name for context in FileStore(store).contexts()}
    recorded = {name.rpartition(".")[0] for name in kernels if name.startswith("vllm.")}
    spec = PrewarmSpec(
        modules=("dejavu_cache.attention",),
        recorded=tuple(sorted(recorded)),
        store=store.as_uri(),
        devices=(gpu,),
        engine="vllm",
        options=options,
    )
    manifest, notes = prewarm(spec, out)
    value = {
        "seconds": round(time.perf_counter() - begin, 1),
        "bytes": sum(file.size for file in manifest.files.values()),
        "binaries": {kernel.name: kernel.binaries for kernel in manifest.kernels},
        "notes": notes,
    }
    keep("build", name, value=value)
    return f"prewarmed://{out}"


def tamper(folder: Path) -> str:
    """Copy a folder with one byte of a binary changed; return its URL."""
    copy = shutil.copytree(folder, VLLM / "tampered", dirs_exist_ok=True)
    (path,) = list(copy.rglob("merge_kernel.cubin"))[:1]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return f"prewarmed://{copy}"


def make_older(folder: Path) -> str:
    """Copy a folder with the manifest of an engine that had another Triton; return its URL."""
    copy = shutil.copytree(folder, VLLM / "older", dirs_exist_ok=True)
    manifest = read_manifest(copy).model_copy(update={"triton": "3.5.1"})
    (copy / MANIFEST).write_text(manifest.text)
    return f"prewarmed://{copy}"


def build_for_another_gpu(store: Path) -> str:
    """Build a folder for a GPU of another architecture; return its URL."""
    other = Device(name="NVIDIA A100-SXM4-80GB", arch="sm_80", units=108, memory_gib=80)
    records = VLLM / "recorded-of-other"
    shutil.rmtree(records, ignore_errors=True)
    for context in FileStore(store).contexts():
        if context.kernel.name.endswith(".merge_kernel"):
            theirs = context.model_copy(update={"environment": builder_environment(other)})
            FileStore(records).put(theirs, FileStore(store).records(context))
    return build_folder("folder-of-other", other.name, records)


def start_each(*starts: tuple[Any, ...]) -> None:
    for start in starts:
        if seconds_left() < 32:
            log("no time is left for", start[0])
            return
        time_start(*start)


def run_prewarmed() -> None:
    """Record a start, build a folder for its model, and start from it beside FA3.

    vLLM's own kernels are known by the recorded start, and attention's by the model's config alone.
    The recorded start's caches are full for those that have no folder.
    """
    store, others = VLLM / "recorded", VLLM / "recorded-of-vllm"
    for folder in (store, others):
        shutil.rmtree(folder, ignore_errors=True)
    store.mkdir(parents=True)
    gpu = time_start("recorded", "CUSTOM", "recorded", store.as_uri())
    shutil.copytree(store, others, ignore=shutil.ignore_patterns("dejavu_cache.*"))
    by_model = build_folder("folder-by-model", gpu, others, model=str(MODEL), **LIMITS)
    start_each(
        *(
            (f"{name}-{turn}", backend, f"{name}-{turn}" if url else "recorded", url)
            for turn in range(3)
            for name, backend, url in (
                ("by-model", "CUSTOM", by_model),
                ("fa3", "FLASH_ATTN", ""),
                ("full-caches", "CUSTOM", ""),
            )
        ),
        ("fa3-cold", "FLASH_ATTN", "fa3-cold", ""),
    )


def run_refused() -> None:
    """Start with folders that are refused, and with full caches; profile first prompts.

    `prewarmed` has made the folder, and the store with a recorded start.
    """
    made, store = VLLM / "folder-by-model", VLLM / "recorded"
    urls = {"tampered": tamper(made), "older": make_older(made)}
    engines = [
        Engine(name, "CUSTOM", cache=name, DEJAVU_CACHE_URL=url) for name, url in urls.items()
    ]
    other = build_for_another_gpu(store)
    for engine in engines:
        engine.wait_until_started()
        keep_start(engine.name)
        engine.end()
    by_model = f"prewarmed://{made}"
    start_each(
        ("profiled", "CUSTOM", "by-model", by_model, True),
        ("fa3-profiled", "FLASH_ATTN", "fa3", by_model, True),
        ("another-gpu", "CUSTOM", "older", other),
        *((f"full-caches-{turn}", "CUSTOM", "older", "") for turn in range(3)),
    )


def run_by_another() -> None:
    """Prewarm a model with what another one's start says of vLLM's own kernels."""
    store = VLLM / "recorded-of-another"
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    gpu = time_start("another", "CUSTOM", "another", store.as_uri(), model="qwen2.5-1.5b")
    for attention in store.glob("dejavu_cache.*"):
        shutil.rmtree(attention)
    url = build_folder("folder-by-another", gpu, store, model=str(MODEL), **LIMITS)
    time_start("by-another", "CUSTOM", "by-another", url)


def run_autotuned(model: str, **options: Any) -> None:
    """Start a model whose kernels vLLM autotunes: plainly and with the cache, twice each.

    Then both run in turns, since the time of a step is that of the host here.
    """
    engines = {
        kind: partial(
            Engine,
            backend="none",
            model=model,
            options={"kv_cache_memory_bytes": 6 << 30, **options},
            cache=f"{model}-{kind}",
            **variables,
        )
        for kind, variables in (("plain", {}), ("cached", {"DEJAVU_CACHE_INSTALL": "1"}))
    }
    for kind, start_kind in engines.items():
        for number in ("first", "second"):
            engine = start_kind(f"{model}-{kind}-{number}")
            engine.wait_until_started()
            for tokens in (500, 4000):
                value = engine.tell("prefill", 1, tokens, 1)
                keep("prompts", engine.name, str(tokens), value=value)
            engine.end()
    both = make_ready([start_kind(kind) for kind, start_kind in engines.items()])
    compare_speed(
        both, {("prefill", 1, 500): 45, ("prefill", 1, 4000): 45, ("decode", 4, 300, 60): 8}
    )
    end(both)


def run_compiled() -> None:
    """Run with vLLM's own defaults: torch.compile, piecewise and full graphs."""
    engines = start("fa3", "ours", compilation_config=None)
    compare_agreement(engines)
    for command in (("decode", 32, 2000, 120), ("prefill", 1, 8000), ("prefill", 1, 500)):
        for engine in engines:
            keep("compiled", " ".join(map(str, command)), engine.name, value=engine.tell(*command))
    end(engines)


{
    "speed": run_speed,
    "float8": run_float8,
    "profile": run_profile,
    "full": run_full,
    "figure9": run_figure9,
    "day": run_day,
    "cold": run_cold,
    "prewarmed": run_prewarmed,
    "refused": run_refused,
    "by_another": run_by_another,
    "mamba": partial(run_autotuned, "mamba2"),
    # On Hopper, vLLM's own choice is FlashInfer's kernel, which is no Triton.
    "gated_delta": partial(run_autotuned, "gated-delta", gdn_prefill_backend="triton"),
    "compiled": run_compiled,
}[PLAN]()
log("done")
os._exit(0)

"""One vLLM engine in this process, driven by lines of JSON: [command, argument, ...].

    engine.py NAME BACKEND MODEL '{"more": "arguments of vllm.LLM"}'

The answers are lines `RESULT {...}`.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

BEGIN = time.perf_counter()
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import launch_counts  # noqa: E402
import torch  # noqa: E402
from drawn_day import draw_day  # noqa: E402

NAME, BACKEND, MODEL = sys.argv[1:4]
MORE = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
LENGTHS = (7, 130, 517, 2049, 8000)
KINDS: tuple[dict[str, Any], ...] = (
    {},
    *({"temperature": 0.8, **more} for more in ({}, {"seed": 3}, {"min_p": 0.1})),
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"logit_bias": {7: 1.0}, "min_tokens": 2, "stop_token_ids": [11]},
    *({"logprobs": number} for number in (0, 1, 3, 5, 10, 20)),
    {"prompt_logprobs": 2},
)
"""Kinds of requests, by vLLM's `SamplingParams`."""


def answer(kind: str, **content: Any) -> None:
    print("RESULT " + json.dumps({"kind": kind, "name": NAME, **content}), flush=True)


def start() -> Any:
    import vllm

    options: dict[str, Any] = {
        "model": MODEL,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": 16384,
        "kv_cache_memory_bytes": 11 << 30,
        "gpu_memory_utilization": 0.2,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 64,
        "seed": 0,
        "disable_log_stats": True,
        "compilation_config": {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64],
        },
        **({"attention_config": {"backend": BACKEND}} if BACKEND != "none" else {}),
        **MORE,
    }
    llm = vllm.LLM(**options)
    torch.cuda.synchronize()
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    answer(
        "start",
        seconds=round(time.perf_counter() - BEGIN, 2),
        counts=launch_counts.counts(),
        gpu=torch.cuda.get_device_name(),
        versions={"vllm": vllm.__version__, "torch": torch.__version__},
        backend=sorted({type(getattr(layer, "impl", layer)).__name__ for layer in layers}),
        graphs=str(llm.llm_engine.vllm_config.compilation_config.cudagraph_mode),
    )
    return llm


def fill_weights(model: Any) -> int:
    """Draw the same Gaussian weights in every engine; the dummy ones give logits of about 0."""
    generator = torch.Generator(device="cuda").manual_seed(1234)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.fill_(1.0)
            elif weight.dim() >= 2:
                scale = 1.0 if "embed" in name else weight.shape[-1] ** -0.5
                for part in weight.split(max(1, (1 << 28) // weight[0].numel())):
                    noise = torch.randn(part.shape, generator=generator, device="cuda")
                    part.copy_((noise * scale).to(weight.dtype))
    torch.cuda.empty_cache()
    return sum(weight.numel() for weight in model.parameters())


def kernel_times(run: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Return the GPU's microseconds of one repeat of what `run` repeats, by kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
    kernels = [event for event in seen.key_averages() if event.device_time_total]
    kernels.sort(key=lambda event: -event.device_time_total)
    return {
        "busy_us": round(sum(event.device_time_total for event in kernels) / repeats, 1),
        "kernels": {
            event.key[:80]: {
                "launches": round(event.count / repeats, 2),
                "us": round(event.device_time_total / repeats, 2),
            }
            for event in kernels[:14]
        },
    }


def call_times(run: Callable[[], object]) -> dict[str, float]:
    """Return milliseconds of the host in torch's operations and CUDA's functions themselves."""
    from torch.profiler import ProfilerActivity, profile

    allocated = torch.cuda.memory_stats()["num_device_alloc"]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        started = time.perf_counter()
        run()
        taken = time.perf_counter() - started
    events = {
        event.key[:80]: round(event.self_cpu_time_total / 1e3, 3) for event in seen.key_averages()
    }
    allocations = torch.cuda.memory_stats()["num_device_alloc"] - allocated
    return {"all": round(1e3 * taken, 2), "allocations": allocations, **events}


def python_times(run: Callable[[], object]) -> dict[str, float]:
    """Return milliseconds of the host in Python's functions themselves."""
    profile = cProfile.Profile()
    begin = time.perf_counter()
    profile.runcall(run)
    taken = time.perf_counter() - begin
    stats: Any = pstats.Stats(profile)
    functions = {
        f"{Path(file).name}:{line} {name}": round(1e3 * own, 3)
        for (file, line, name), (_, _, own, _, _) in stats.stats.items()
    }
    return {"all": round(1e3 * taken, 2), **functions}


class Requests:
    """Requests to an engine that is stepped by hand."""

    def __init__(self, llm: Any) -> None:
        self.engine, self.count, self.day = llm.llm_engine, 0, None
        model = self.engine.vllm_config.model_config
        self.vocabulary = min(model.get_vocab_size(), 100_000)

    def prompt_of(self, count: int, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1000, self.vocabulary, (count,), generator=generator)
        return list(tokens.tolist())

    def ask_each_kind(self, counts: list[int]) -> dict[str, Any]:
        """Ask requests of each kind, that many at a time; return what had to be compiled."""
        before = launch_counts.COMPILED.copy()
        for count, options in product(counts, KINDS):
            for seed in range(count):
                self.add(self.prompt_of(20 + count, seed), 3, **options)
            self.drain()
        return {"requests": sum(counts) * len(KINDS), **(launch_counts.COMPILED - before)}

    def add(self, prompt: list[int], tokens: int, **options: Any) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.count += 1
        params = SamplingParams(
            **{"temperature": 0.0, **options},
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.engine.add_request(str(self.count), {"prompt_token_ids": prompt}, params)

    def step(self) -> list[Any]:
        return [output.outputs[0] for output in self.engine.step()]

    def drain(self) -> list[tuple[float, list[Any]]]:
        """Step to the end; return when each step's tokens came, and its outputs."""
        steps = []
        while self.engine.has_unfinished_requests():
            outputs = self.step()
            if outputs:
                steps.append((time.perf_counter(), outputs))
        return steps

    def agree(self) -> dict[str, Any]:
        """Return greedy tokens and the likeliest log probabilities after prompts."""
        answers = {}
        for length in LENGTHS:
            self.add(self.prompt_of(length, length), 24, logprobs=5)
            tokens, tops = [], []
            for _, outputs in self.drain():
                for output in outputs:
                    tokens += output.token_ids
                    for likely in output.logprobs or []:
                        pairs = [[token, round(prob.logprob, 4)] for token, prob in likely.items()]
                        tops.append(sorted(pairs, key=lambda pair: -pair[1])[:5])
            answers[str(length)] = {"tokens": tokens, "tops": tops}
        return answers

    def decode(self, count: int, prompt: int, tokens: int) -> dict[str, Any]:
        """Return milliseconds per step of a batch that decodes."""
        for seed in range(count):
            self.add(self.prompt_of(prompt, seed), tokens)
        whens = [
            when
            for when, outputs in self.drain()
            if sum(len(output.token_ids) for output in outputs) == count
        ]
        gaps = [1e3 * (after - before) for before, after in pairwise(whens)]
        # The first steps still compile and settle, and in the last ones requests end.
        gaps = gaps[max(len(gaps) - tokens + 20, 0) : -4]
        return {"ms": round(statistics.median(gaps), 4), "mean_ms": round(statistics.mean(gaps), 4)}

    def profile_decode(self, count: int, prompt: int, steps: int = 20) -> dict[str, Any]:
        """Return the GPU's microseconds per step of a batch that decodes, by kernel."""
        for seed in range(count):
            self.add(self.prompt_of(prompt, seed), 2 * steps + 40)
        self._produce(count * steps)
        times = kernel_times(lambda: self._produce(count * steps), steps)
        self.drain()
        return times

    def profile_prefill(self, count: int, prompt: int, repeats: int = 4) -> dict[str, Any]:
        """Return the GPU's microseconds from requests to the last first token, by kernel."""
        # `prefill` runs once more than it is told to, to warm up.
        return kernel_times(lambda: self.prefill(count, prompt, repeats - 1), repeats)

    def _produce(self, count: int) -> None:
        """Step until that many tokens have come."""
        produced = 0
        while produced < count:
            produced += sum(len(output.token_ids) for output in self.step())
        torch.cuda.synchronize()

    def prefill(self, count: int, prompt: int, repeats: int = 7) -> dict[str, Any]:
        """Return milliseconds from requests to the last first token."""
        times = []
        for repeat in range(repeats + 1):
            prompts = [self.prompt_of(prompt, 100 * repeat + seed) for seed in range(count)]
            torch.cuda.synchronize()
            begin = time.perf_counter()
            self._answer_all(prompts)
            times.append(1e3 * (time.perf_counter() - begin))
        return {"ms": round(statistics.median(times[1:]), 3), "first_ms": round(times[0], 2)}

    def _answer_all(self, prompts: list[list[int]]) -> None:
        for tokens in prompts:
            self.add(tokens, 1)
        self.drain()
        torch.cuda.synchronize()

    def profile_first(self, prompt: int) -> dict[str, Any]:
        """Return where the host's milliseconds of a first prompt and of a second one went.

        An even length is profiled by Python's calls, and an odd one by those of torch and CUDA.
        """
        measure = python_times if prompt % 2 == 0 else call_times
        measure(torch.cuda.synchronize)  # what measures is itself slow at its first time
        loaded, modules = sum(launch_counts.LOADED.values()), len(sys.modules)
        prompts = [self.prompt_of(prompt, seed) for seed in range(2)]
        first, second = (measure(partial(self._answer_all, [tokens])) for tokens in prompts)
        rows = sorted(first, key=lambda name: second.get(name, 0) - first[name])[:20]
        return {
            "rows": {name: [first[name], second.get(name, 0)] for name in rows},
            "loaded": sum(launch_counts.LOADED.values()) - loaded,
            "imported": len(sys.modules) - modules,
        }

    def long(self, tokens: int) -> dict[str, Any]:
        """Decode one request further; return seconds, and when it has to be begun, begin it."""
        if not self.engine.has_unfinished_requests():
            self.add(self.prompt_of(500, 0), 13000)
            while not any(output.token_ids for output in self.step()):
                pass
        produced, begin = 0, time.perf_counter()
        while produced < tokens:
            produced += sum(len(output.token_ids) for output in self.step())
        torch.cuda.synchronize()
        return {"tokens": produced, "seconds": round(time.perf_counter() - begin, 5)}

    def run_day(self, steps: int, day_steps: int, seed: int = 11) -> dict[str, Any]:
        """Run the next steps of a drawn day.

        Returns the tokens that were written, and of each step its seconds and the tokens of the
        prompts that came in it.
        """
        if self.day is None:
            self.day = [0, draw_day(seed, day_steps)]
        times, prompts, tokens = [], [], 0
        for _ in range(steps):
            number, waiting = self.day
            prompt_tokens = 0
            while waiting and waiting[0].step <= number:
                request = waiting.pop(0)
                self.add(self.prompt_of(request.prompt, request.step), request.answer)
                prompt_tokens += request.prompt
            self.day[0] += 1
            if not self.engine.has_unfinished_requests():
                continue
            begin = time.perf_counter()
            tokens += sum(len(output.token_ids) for output in self.step())
            times.append(round(time.perf_counter() - begin, 6))
            prompts.append(prompt_tokens)
        return {"tokens": tokens, "times": times, "prompts": prompts}

    def end_day(self) -> int:
        """Finish the requests of a day, so that another one can begin; return the steps taken."""
        self.day = None
        return len(self.drain())


def main() -> None:
    llm = start()
    requests = Requests(llm)
    commands = {
        "weights": lambda: llm.apply_model(fill_weights)[0],
        "counts": launch_counts.counts,
        "agree": requests.agree,
        "decode": requests.decode,
        "prefill": requests.prefill,
        "kinds": requests.ask_each_kind,
        "profile_decode": requests.profile_decode,
        "profile_prefill": requests.profile_prefill,
        "profile_first": requests.profile_first,
        "long": requests.long,
        "day": requests.run_day,
        "end_day": requests.end_day,
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "end":
            break
        try:
            answer(name, answer=commands[name](*arguments))
        except Exception as error:
            traceback.print_exc()
            answer(name, error=repr(error)[:600])
    sys.stdout.flush()
    os._exit(0)


main()

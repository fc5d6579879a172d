"""Plug-in that vLLM loads in every process of an engine.

It tells the library in which phase a GPU worker is: loading weights, warming up, or serving.
"""

from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from typing import Any

from ...runtime.launch_recorder import record_launches_of
from ...runtime.prewarmed_binaries import COMPILED, use_prewarmed_binaries
from ...runtime.service_phase import is_serving, serving, warmup
from ...settings import current_settings
from ...system.import_hooks import after_import
from ...system.notices import counted, logger
from ...triton_internals.environment import current_device, toolchain_on


class _Layers:
    """The layers to warm up when the weights are loaded and vLLM has settled all sizes."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self.are_loaded = False

    def add(self, layer: Any) -> None:
        self._waiting.append(layer)
        if self.are_loaded:  # weights may be loaded again while the engine serves
            self.warm_up()

    def warm_up(self) -> None:
        self.are_loaded = True
        while self._waiting:
            self._waiting.pop(0).warm_up()


_layers = _Layers()


def warm_up_when_loaded(layer: Any) -> None:
    """Call a layer's `warm_up` before the worker measures its memory, or now if that is over.

    vLLM chooses the block size of models with Mamba layers after it has loaded their weights.
    """
    _layers.add(layer)


def _starting() -> AbstractContextManager[None]:
    """Return a block in which a worker may tune and compile, also while another engine serves."""
    return warmup() if is_serving() else nullcontext()


def _token_counts(most: int) -> list[int]:
    """Return numbers of tokens for which cuBLAS takes many of its kernels, the largest first."""
    powers = [1 << bit for bit in range(most.bit_length())]
    counts = {count for power in powers for count in (power, power + 1, power + power // 2)}
    return sorted({min(count, most) for count in counts}, reverse=True)


def multiply_once(worker: Any) -> None:
    """Multiply by each kind of a model's plain weights, for numbers of tokens up to a full step's.

    CUDA loads each kernel of cuBLAS at its first launch, in milliseconds of a first prompt. Other
    numbers may have other kernels. Torch keeps the memory, as it does after a full step, if the
    worker has captured its graphs before: that frees what torch keeps.
    """
    import torch

    limits, kinds = worker.vllm_config.scheduler_config, {}
    for layer in worker.get_model().modules():
        weight: Any = getattr(layer, "weight", None)
        is_plain = getattr(weight, "dtype", None) in (torch.float16, torch.bfloat16)
        if is_plain and weight.dim() == 2 and hasattr(layer, "quant_method"):
            # Of each request, one token at most is multiplied by the vocabulary.
            is_vocabulary = hasattr(layer, "num_embeddings")
            most = limits.max_num_seqs if is_vocabulary else limits.max_num_batched_tokens
            bias = None if getattr(layer, "skip_bias_add", False) else getattr(layer, "bias", None)
            kinds[weight.shape, weight.dtype, bias is None, most] = weight, bias
    with torch.inference_mode():
        for (*_, most), (weight, bias) in kinds.items():
            rows = weight.new_zeros(most, weight.shape[1])
            for count in _token_counts(most):
                torch.nn.functional.linear(rows[:count], weight, bias)
    torch.cuda.synchronize()


def follow_worker(worker_module: Any) -> None:
    """Have the worker of vLLM 0.22 to 0.33 warm its layers up, and serve after capturing graphs.

    vLLM's own kernels come from prewarmed folders too, and what they are compiled for is recorded.
    """
    worker = worker_module.Worker
    load, measure = worker.load_model, worker.determine_available_memory
    warm_up = worker.compile_or_warm_up_model
    is_prewarmed = use_prewarmed_binaries()
    record_launches_of("vllm", "dejavu_cache")

    @wraps(load)
    def load_model(*args: Any, **kwargs: Any) -> object:
        _layers.are_loaded = False
        with suppress(Exception):  # Triton's keys have the ptxas of now: Inductor may set its own
            toolchain_on(current_device())
        with _starting():
            return load(*args, **kwargs)

    @wraps(measure)
    def determine_available_memory(*args: Any, **kwargs: Any) -> object:
        with _starting():
            _layers.warm_up()
            return measure(*args, **kwargs)

    @wraps(warm_up)
    def compile_or_warm_up_model(*args: Any, **kwargs: Any) -> object:
        with _starting():
            _layers.warm_up()  # some engines are told their memory
            result = warm_up(*args, **kwargs)
        if is_prewarmed:
            with suppress(Exception):  # another vLLM: its first prompts load what they multiply by
                multiply_once(args[0])
        if COMPILED:
            logger.warning(
                "%s had to be compiled (%s): the prewarmed folder is for another GPU, code or "
                "model; `dejavu-cache doctor` says more",
                *(counted(len(COMPILED), "kernel"), ", ".join(sorted(set(COMPILED)))),
            )
            COMPILED.clear()
        serving()
        return result

    worker.load_model = load_model
    worker.determine_available_memory = determine_available_memory
    worker.compile_or_warm_up_model = compile_or_warm_up_model


def find_logits_processors(processor_module: Any) -> None:
    """Have vLLM look for plug-ins of logits as it starts, not in 10 ms of its first request."""
    create = processor_module.InputProcessor.__init__

    def create_and_find(processor: Any, *args: Any, **kwargs: Any) -> None:
        create(processor, *args, **kwargs)
        with suppress(Exception):  # another vLLM, or a plug-in that fails: the request says so
            from vllm.v1.sample.logits_processor import cached_load_custom_logitsprocs

            chosen = processor.model_config.logits_processors
            cached_load_custom_logitsprocs(chosen and tuple(chosen))

    processor_module.InputProcessor.__init__ = create_and_find


BACKEND = "dejavu_cache.engines.vllm.backend.DejavuAttentionBackend"


def register() -> None:
    """Offer the attention backend as `CUSTOM`; replace `triton.autotune` if the settings say so.

    vLLM calls this in each of its processes, through the entry-point group `vllm.general_plugins`.
    """
    after_import("vllm.v1.attention.backends.registry", offer_backend)
    after_import("vllm.v1.worker.gpu_worker", follow_worker)
    after_import("vllm.v1.engine.input_processor", find_logits_processors)
    if current_settings().install:
        from ...installation.autotune_replacement import install

        install()


def offer_backend(registry: Any) -> None:
    """Offer the attention backend as vLLM's `CUSTOM`, unless that is another one already."""
    custom = registry.AttentionBackendEnum.CUSTOM
    if not custom.is_overridden():
        registry.register_backend(custom, BACKEND)
    elif custom.get_path() != BACKEND:
        logger.warning(
            "vLLM's backend CUSTOM is %s already, so that dejavu-cache's attention is not offered",
            custom.get_path(),
        )

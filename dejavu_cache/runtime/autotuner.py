"""`@cached_autotune`: `triton.autotune` with a memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .cached_autotuner import CachedAutotuner
from .options import CacheOptions, check_declaration

if TYPE_CHECKING:
    from triton import Config as TritonConfig
    from typing_extensions import Unpack

__all__ = ["CachedAutotuner", "cached_autotune"]


def cached_autotune(
    configs: Sequence[TritonConfig],
    key: Sequence[str],
    prune_configs_by: dict[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    **options: Unpack[CacheOptions],
) -> Callable[[Any], CachedAutotuner]:
    """Decorate a `triton.jit` function so that each scenario is tuned once and its record reused.

    The parameters up to `cache_results` are those of `triton.autotune`, in its order. An option
    that is not given, or None, comes from the policy file, or else from the environment, as `mode`
    from `DEJAVU_CACHE_MODE`.

    Args:
        configs: the `triton.Config`s to choose from, as a sequence or a `config_space`.
        key: the arguments by whose values scenarios are told apart. The dtypes of tensors always
            count.
        prune_configs_by: functions that leave out configs for a launch: `early_config_prune`, or
            `perf_model` and `top_k`.
        reset_to_zero: tensor arguments that are set to zero before each benchmarked launch.
        restore_value: tensor arguments that are restored after each benchmarked launch.
        pre_hook: is called before each benchmarked launch: `pre_hook(arguments, reset_only)`.
        post_hook: is called after each benchmarked launch: `post_hook(arguments, exception)`.
        warmup: deprecated by Triton, in milliseconds.
        rep: deprecated by Triton, in milliseconds.
        use_cuda_graph: deprecated by Triton; `method="cudagraph-warm"` does the same.
        do_bench: a benchmark function `do_bench(kernel_call, quantiles)` that returns milliseconds,
            in place of `method`.
        cache_results: accepted and ignored: results are always kept.
        **options: any of the following, by name.

            - `buckets` (Mapping[str, Bucket | str | Mapping]): for some of the key arguments, the
              rule that maps a value to its bucket: `Pow2(max=4096)`, `"pow2"` or
              `{"kind": "pow2"}`.
            - `store` (Store | str | PathLike): the store, its URL or a folder; else
              `DEJAVU_CACHE_URL`.
            - `mode` (Mode | str): what a launch may do on a miss: `tune`, `reuse`, `strict` or
              `off`.
            - `default` (triton.Config | Mapping | Callable): the declared config that a miss falls
              back on, some of its values (`{"BLOCK": 64}` is the first config with them), or a
              function from the arguments by name to one of these; else the first config.
            - `max_distance` (float): the largest distance to a recorded scenario whose winner may
              stand in, in powers of two summed over the key arguments, 0 or more.
            - `method` (str): how configs are timed: `events-cold` (the default), `events-warm`,
              `cudagraph-cold` or `cudagraph-warm`.
            - `tune_seconds` (float): seconds that one tune may take, above 0; the next process
              continues it.
            - `tune_configs` (int): the number of measured configs at which a scenario counts as
              tuned, 1 or more.
            - `consensus` (str): `ranks` makes all ranks of a torch.distributed job run one rank's
              choice; `none` does not.
            - `check` (CheckOptions | bool): how results are compared with the default config's
              before a config may win; False compares nothing.
            - `prune_per` (str): within a bucket, `launch` (the default) prunes for each launch that
              differs in what the functions read of its arguments; `scenario` prunes once.

    Returns:
        A decorator from a kernel to its `CachedAutotuner`.

    Raises:
        SettingsError: when a kernel is decorated: it lacks `@triton.jit`, an option does not exist,
            there are no configs, a config sets what is neither an argument nor an option of a
            compiler, the key names what is no argument, a parameter has a value that it cannot
            have, a bucket names no key argument or is misspelled, the default is not among the
            configs, or `method` is given beside `do_bench`.

    Example:
        >>> @cached_autotune(configs=[...], key=["M"], buckets={"M": Pow2()})  # doctest: +SKIP
        ... @triton.jit
        ... def kernel(x_ptr, M, N, BLOCK: tl.constexpr): ...
    """
    parameters = {
        "configs": configs,
        "key": key,
        "reset_to_zero": reset_to_zero,
        "restore_value": restore_value,
        "pre_hook": pre_hook,
        "post_hook": post_hook,
        "prune_configs_by": prune_configs_by,
        "warmup": warmup,
        "rep": rep,
        "use_cuda_graph": use_cuda_graph,
        "do_bench": do_bench,
    }

    def decorate(fn: Any) -> CachedAutotuner:
        check_declaration(fn, parameters)
        return CachedAutotuner(fn, fn.arg_names, **parameters, options=options)

    return decorate

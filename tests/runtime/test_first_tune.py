"""The first process that tunes into a folder says once what later ones find there."""

from __future__ import annotations

from pathlib import Path

from support.processes import run_python

TUNE = """
    from support.addition import CONFIGS, add_one
    from support.kernels import launch
    from dejavu_cache import cached_autotune

    def bench(kernel_call, quantiles):
        kernel_call()
        return [1.0, 1.0, 1.0]

    kernel = cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench)(add_one)
    for size in {sizes}:
        launch(kernel, size)
"""


def test_the_first_process_that_tunes_says_what_it_kept(tmp_path: Path) -> None:
    said = [
        run_python(TUNE.format(sizes=sizes), DEJAVU_CACHE_URL=str(tmp_path)).stderr
        for sizes in ([128, 300], [128, 300], [128, 500])
    ]
    assert said[0].startswith("dejavu-cache: 2 scenarios tuned in ")
    assert said[0].endswith(f"to see them: dejavu-cache ls --store {tmp_path}\n")
    assert said[1:] == ["", ""]

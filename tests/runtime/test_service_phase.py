"""While a process serves, no launch benchmarks, and none compiles where a kernel stands in."""

from __future__ import annotations

import json
from pathlib import Path

from support.processes import fork_program


def test_serving_neither_benchmarks_nor_compiles(tmp_path: Path) -> None:
    done = fork_program(
        "serve_requests.py",
        str(tmp_path),
        TRITON_INTERPRET="0",
        DEJAVU_CACHE_SHIPPED="0",
    )
    report = json.loads(done.stdout)
    assert report["untuned"] == [[16, 16, 16, 16], [0, 0]]
    assert report["warmed again"] == [True, 3]
    assert report["unavoidable"] == [0, 1]
    assert "is compiled while requests wait" in done.stderr
    assert report["ended"] == 3
    assert report["stand-in"] == [True, [0, 0]]
    assert report["chosen afterwards"]
    assert report["hooked"] == ["clear", "body"], "a hook's own kernel is never refused"
    assert report["silent"] == [1, 1], "a function that returns nothing is launched once"
    assert report["off"] == [[16, 16], 0], "Triton tunes nothing either"

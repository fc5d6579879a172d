"""The attention kernels against the reference in Triton's interpreter, and their errors."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention_batches import REFUSED_MASK, Case, check, draw, runnable
from support.processes import fork_python

from dejavu_cache.attention import api, paged_attention
from dejavu_cache.attention.batch import make_batch
from dejavu_cache.attention.kernels import few_sequences, hopper, static_grid
from dejavu_cache.attention.kernels.segmented import PER_SM, num_segments
from dejavu_cache.attention.schedule import Schedule
from dejavu_cache.attention.sweep_suite import KERNELS
from dejavu_cache.triton_internals.versions import COVERED

# The interpreter divides masked lanes by zero, and converts one-element arrays in the old way.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")

BATCH = Case(new=[1, 5, 12], past=[40, 9, 0], heads=(4, 2))
"""Its last sequence has more Q blocks than one."""

SMALL = replace(BATCH, new=[1, 3, 4])
CASES = {
    "decode": Case(new=[1] * 4, past=[90, 1, 200, 33], heads=(4, 2)),
    "mixed": BATCH,
    "one head a group": replace(SMALL, heads=(2, 2)),
    "odd group, odd page, odd head": replace(SMALL, heads=(7, 1), head_size=80, page=24),
    "page of one token": replace(SMALL, heads=(5, 1), page=1),
    "page larger than the tile": replace(SMALL, page=128),
    "window": replace(SMALL, window=13),
    "window of one": replace(SMALL, window=0),
    "softcap": replace(SMALL, softcap=5.0),
    "alibi": replace(SMALL, alibi=True),
    "sinks": replace(SMALL, sinks=True),
    "more than a block of 32 rows": replace(SMALL, new=[1, 20], past=[4, 40], heads=(2, 1)),
    "one query": replace(SMALL, new=[1], past=[70], heads=(1, 1)),
    "everything": replace(BATCH, window=30, softcap=5.0, alibi=True, sinks=True, padding=2),
    "float16": replace(SMALL, dtype=torch.float16),
    "float8 cache": replace(SMALL, dtype=torch.float16, cache_dtype=torch.float8_e4m3fn),
}
TUNED = ("naive", "qblock", "segmented", "static_grid")
IN_THE_INTERPRETER = [
    pytest.param(name, marks=REFUSED_MASK if name == "segmented" else ()) for name in TUNED
]


@pytest.fixture(autouse=True)
def skip_where_a_gpu_is() -> None:
    if torch.cuda.is_available():
        pytest.skip("tests/gpu holds the kernels against the reference here")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("implementation", IN_THE_INTERPRETER)
def test_every_implementation_agrees_with_the_reference(
    implementation: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, configs = KERNELS[implementation], runnable(implementation, case)
    assert configs
    for config in configs:
        monkeypatch.setattr(kernel, "configs", [config])
        check(case, implementation)


@REFUSED_MASK
def test_few_sequences_agree_with_the_reference() -> None:
    for case in CASES.values():
        check(case, "few_sequences")


@pytest.mark.parametrize(
    ("new", "group", "rows"), [(1, 4, 16), (3, 8, 32), (500, 8, 128), (1, 129, 256), (9, 256, 256)]
)
def test_a_block_of_the_static_grid_holds_a_token_at_least(new: int, group: int, rows: int) -> None:
    assert static_grid.most_rows(new, group) == rows


def test_auto_takes_segments_for_few_sequences_where_the_hopper_kernel_would_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hopper, "suits", lambda batch: True)
    monkeypatch.setattr(few_sequences, "num_sms", lambda device: 132)
    for new, heads, count, expected in (
        (1, (32, 8), 1, "few_sequences"),
        (1, (32, 8), 2, "hopper"),
        (4, (32, 8), 1, "few_sequences"),
        (5, (32, 8), 1, "hopper"),
        (1, (16, 16), 1, "few_sequences"),
        (1, (17, 17), 1, "hopper"),
    ):
        case = Case(new=[new] * count, past=[9] * count, heads=heads, dtype=torch.float16)
        batch = make_batch(**draw(case, "cpu").arguments, softmax_scale=None, out=None)
        assert api.choose(batch) == expected


@REFUSED_MASK
def test_auto_takes_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "configs", [kernel.configs[0]])
    for case in CASES.values():
        check(case, "auto")


@pytest.mark.skipif(not COVERED, reason="this Triton has no Hopper kernel")
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("driver", [12020, 12030, None])
def test_launches_overlap_where_caller_and_driver_allow_it(
    asked: bool, driver: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(new=[1, 1], past=[30, 5], heads=(8, 2), head_size=64, dtype=torch.float16)
    batch = make_batch(**draw(case, "cpu").arguments, softmax_scale=None, out=None)
    monkeypatch.setattr(hopper, "driver_version", lambda: driver)
    nothing = torch.empty(0)
    schedule = Schedule(nothing, nothing, blocks=2, pairs=0, halves=1)
    kwargs = hopper.prepare(batch, schedule, overlap=asked, new=None).kwargs
    allowed = asked and driver == 12030
    assert (kwargs["OVERLAP"], kwargs["launch_pdl"]) == (allowed, allowed)


def test_words_need_even_sizes_and_offsets() -> None:
    memory = torch.empty(4096, dtype=torch.float16)
    even = {"size": (3, 4, 64), "stride": (300, 66, 1), "storage_offset": 2}
    assert hopper.holds_words(memory.as_strided(**even))
    odd: list[dict[str, Any]] = [
        {"size": (3, 4, 65)},
        {"stride": (301, 66, 1)},
        {"stride": (300, 65, 1)},
        {"storage_offset": 1},
    ]
    for changes in odd:
        assert not hopper.holds_words(memory.as_strided(**{**even, **changes})), changes


@pytest.mark.parametrize(
    ("heads", "head", "strides", "answer"),
    [
        (2, 80, (4096, 160, 80, 1), True),  # no gap
        (2, 80, (4096, 256, 128, 1), False),
        (1, 80, (4096, 128, 128, 1), True),  # TMA fills what is behind the last head with zeros
        (2, 128, (4096, 384, 192, 1), True),  # no padding
        (2, 80, (4096, 80, 1280, 1), True),  # heads before tokens
    ],
)
def test_gaps_between_heads_are_seen(
    heads: int, head: int, strides: tuple[int, ...], answer: bool
) -> None:
    cache = torch.empty(16384, dtype=torch.float16).as_strided((2, 16, heads, head), strides)
    assert hopper.has_no_gaps(cache, 128) == answer


@pytest.mark.parametrize("implementation", IN_THE_INTERPRETER)
def test_tokens_after_the_last_sequence_are_left_alone(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KERNELS[implementation], "configs", runnable(implementation, SMALL)[:1])
    batch = draw(SMALL)
    padded = torch.cat([batch.arguments["q"], torch.full((3, 4, 64), float("nan"))])
    out = torch.full_like(padded, 7.0)
    paged_attention(**{**batch.arguments, "q": padded}, out=out, implementation=implementation)
    assert torch.allclose(out[:-3], batch.expected, atol=1e-4)
    assert (out[-3:] == 7.0).all()


@pytest.mark.parametrize("left", [1 << 30, (1 << 31) - 1, 1 << 62])
@pytest.mark.parametrize("implementation", IN_THE_INTERPRETER)
def test_a_window_larger_than_any_sequence_is_none(
    implementation: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KERNELS[implementation], "configs", runnable(implementation, SMALL)[:1])
    batch = draw(SMALL)
    batch.arguments["window_size"] = (left, 0)
    assert torch.allclose(batch.run(implementation), batch.expected, atol=1e-4)


def test_a_batch_of_more_sequences_than_tokens_is_still_a_decode() -> None:
    drawn = draw(replace(SMALL, new=[1], past=[20], padding=5)).arguments
    arguments: list[Any] = [drawn.get(name) for name in inspect.signature(make_batch).parameters]
    batch = make_batch(*arguments)
    assert batch.decode_share == 100


def arguments(**changes: Any) -> dict[str, Any]:
    return {**draw(Case(new=[1, 3], past=[20, 0], heads=(4, 2))).arguments, **changes}


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "q of two dimensions": ("q: ", {"q": torch.zeros(4, 64)}),
    "q of integers": ("q: int32", {"q": torch.zeros(4, 4, 64, dtype=torch.int32)}),
    "no tokens": ("q: ", {"q": torch.zeros(0, 4, 64)}),
    "heads too large": ("q: .* up to 256", {"q": torch.zeros(4, 4, 512)}),
    "q not contiguous": ("q: .* contiguous", {"q": torch.zeros(4, 64, 4).transpose(1, 2)}),
    "bfloat16 in the interpreter": (
        "q: .* interpreter",
        {"q": torch.zeros(4, 4, 64, dtype=torch.bfloat16)},
    ),
    "cache of three dimensions": ("k_cache: ", {"k_cache": torch.zeros(8, 2, 64)}),
    "cache of another head size": (
        "k_cache: .* head_size 64",
        {"k_cache": torch.zeros(8, 16, 2, 32)},
    ),
    "cache of another dtype": (
        "k_cache: float16",
        {"k_cache": torch.zeros(8, 16, 2, 64, dtype=torch.float16)},
    ),
    "heads that do not divide": ("k_cache: .* no multiple", {"k_cache": torch.zeros(8, 16, 3, 64)}),
    "values unlike keys": ("v_cache: ", {"v_cache": torch.zeros(8, 16, 2, 64)}),
    "too few beginnings": ("cu_seqlens_q: ", {"cu_seqlens_q": torch.zeros(2, dtype=torch.int32)}),
    "long beginnings": ("cu_seqlens_q: int64", {"cu_seqlens_q": torch.tensor([0, 1, 4])}),
    "no sequences": ("seqused_k: ", {"seqused_k": torch.zeros(0, dtype=torch.int32)}),
    "a table for another batch": (
        "block_table: ",
        {"block_table": torch.zeros(3, 2, dtype=torch.int32)},
    ),
    "no new tokens at most": ("max_seqlen_q: 0", {"max_seqlen_q": 0}),
    "more keys than blocks": ("max_seqlen_k: 999", {"max_seqlen_k": 999}),
    "a scale of nothing": ("softmax_scale: 0", {"softmax_scale": 0.0}),
    "a scale in words": ("softmax_scale: 'small'", {"softmax_scale": "small"}),
    "a negative cap": ("softcap: -1", {"softcap": -1.0}),
    "a length with a fraction": ("max_seqlen_q: 3.0; expected an int", {"max_seqlen_q": 3.0}),
    "a length in a tensor": ("max_seqlen_k: tensor", {"max_seqlen_k": torch.tensor(21)}),
    "a window of fractions": (r"window_size: \(1.5, 0\)", {"window_size": (1.5, 0)}),
    "a window ahead": (r"window_size: \(5, 5\)", {"window_size": (5, 5)}),
    "a window of -3": (r"window_size: \(-3, -1\)", {"window_size": (-3, -1)}),
    "slopes with gaps": ("alibi_slopes: .* contiguous", {"alibi_slopes": torch.zeros(8)[::2]}),
    "sinks for other heads": ("sinks: ", {"sinks": torch.zeros(4, 1)}),
    "complex sinks": ("sinks: complex64", {"sinks": torch.zeros(4, dtype=torch.complex64)}),
    "a scale per head": ("k_scale: ", {"k_scale": torch.zeros(2)}),
    "a scale without end": ("v_scale: inf", {"v_scale": float("inf")}),
    "another out": ("out: ", {"out": torch.zeros(4, 4, 32)}),
    "an out that overlaps itself": (
        "out: .* of its own",
        {"out": torch.zeros(1, 4, 64).expand(4, 4, 64)},
    ),
    "a float8 that Triton cannot read": (
        "k_cache: float8_e4m3fnuz.* float8_e4m3fn, float8_e5m2$",
        {"k_cache": torch.zeros(8, 16, 2, 64).to(torch.float8_e4m3fnuz)},
    ),
    "unknown implementation": ("implementation: 'fast'", {"implementation": "fast"}),
    "hopper here": ("implementation: 'hopper'", {"implementation": "hopper"}),
}


@pytest.mark.parametrize(("message", "changes"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named_before_any_launch(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        paged_attention(**{"implementation": "qblock", **arguments(**changes)})


def test_heads_too_far_apart_are_named() -> None:
    batch = draw(replace(SMALL, new=[1], past=[5], dtype=torch.float16))
    batch.arguments["q"] = torch.empty((3 << 29) + 64, dtype=torch.float16).as_strided(
        (1, 4, 64), (1, 1 << 29, 1)
    )
    with pytest.raises(
        ValueError, match=r"^q: .* its second dimension must span less than 2\^31 elements"
    ):
        paged_attention(**batch.arguments)


def test_a_group_that_no_config_can_hold_is_named() -> None:
    many = draw(replace(SMALL, new=[2], past=[5], heads=(71, 1)))
    with pytest.raises(
        ValueError, match=r"^q: no config can run .* holds no token of 71 query heads"
    ):
        many.run("qblock")


def test_tensors_of_the_cpu_need_the_interpreter() -> None:
    code = """
        from support.attention_batches import Case, draw
        try:
            draw(Case(new=[3], past=[5])).run("auto")
        except ValueError as error:
            print(error)
    """
    said = fork_python(code, TRITON_INTERPRET="0").stdout
    assert said == "q: on cpu; expected it on a GPU, or TRITON_INTERPRET=1 in the environment\n"


@given(
    num_seqs=st.integers(1, 300),
    context=st.integers(1, 1 << 17),
    tile=st.sampled_from((16, 32, 64, 128)),
    window=st.sampled_from((-1, 0, 100, 5000)),
    head=st.sampled_from((64, 128, 256)),
    most=st.integers(1, 128),
    sms=st.sampled_from((2, 132, 304)),
)
def test_a_segment_has_a_tile_at_least_and_more_programs_mean_no_fewer_segments(
    num_seqs: int, context: int, tile: int, window: int, head: int, most: int, sms: int
) -> None:
    call = {
        "GROUP": 4, "KV_HEADS": 8, "HEAD_PADDED": head, "WINDOW": window,
        "num_rows": num_seqs * 32, "most": most,
        "num_seqs": num_seqs, "max_context": context, "sms": sms,
    }  # fmt: skip
    counts = [
        num_segments(call, {"BLOCK_M": 16, "TILE": tile, "per_sm": per_sm}) for per_sm in PER_SM
    ]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] <= min(most, -(-context // tile))


def test_a_lone_long_sequence_fills_the_gpu_and_a_full_batch_is_not_cut() -> None:
    call = {"GROUP": 4, "KV_HEADS": 8, "HEAD_PADDED": 128, "WINDOW": -1, "most": 128, "sms": 132}
    config = {"BLOCK_M": 16, "TILE": 64, "per_sm": 2}
    one = {**call, "num_rows": 32, "num_seqs": 1, "max_context": 32768}
    assert num_segments(one, config) * 8 in range(200, 265)
    many = {**one, "num_rows": 32 * 128, "num_seqs": 128}
    assert num_segments(many, config) == 1

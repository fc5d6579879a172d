"""Pairs of launches of one random kernel, and whether the second may take the first one's record.

The second is launched as a new process would. It takes a record wrongly if its machine code differs
in more than what a record leaves open: alignment, divisibility and equality to 1 of its arguments.
For that, a twin of the kernel that Triton does not specialize is compiled for both launches.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from support.compiling_gpu import code_of, without_timing
from support.identity_check import Outcome, copy_store, import_anew, prepare_process

BATCH = 20
"""Kernels of one process, each with `SECONDS` second launches."""

SECONDS = 4

_HEAD = """from typing import NamedTuple
import triton
import triton.language as tl
from triton.language import core

STATE = {"h": 4}

class P(NamedTuple):
    a: object
    b: object

class Q(NamedTuple):
    b: object
    a: object

@triton.jit
def f(v):
    return v + 1.25

class Op:
    @triton.jit
    def apply(v):
        return v * 3.5

@core.builtin
def builtin(v, _semantic=None):
    return _semantic.mul(v, v, True)

@triton.constexpr_function
def depth():
    return STATE["h"]

"""


class Slot(NamedTuple):
    """A parameter of a random kernel.

    Triton specializes what is in tuples for the twin as well, so that they hold no 1 and no tensor
    that is not aligned.

    Attributes:
        parameter: as it is declared.
        body: what the kernel does with it.
        values: expressions of arguments; an empty one leaves the argument out.
    """

    parameter: str
    body: str
    values: tuple[str, ...]


SLOTS = (
    Slot("number", "if number is not None:\n        v = v * number",
         ("1", "2", "16", "2**31", "2**40", "2**63 + 8", "2.5", "True", "None", "-1",
          "numpy.float32(2.5)", "numpy.int64(3)", "torch.tensor(2)")),
    Slot("pair", "v += tl.load(pair[0] + at, mask=at < n).to(tl.float32) + len(pair)\n"
         "    if pair[1] is not None:\n        v = v * pair[1]",
         ("(tensor(), 3)", "(tensor(), 2.5)", "(tensor(), 2**40)", "(tensor(), None)",
          "(tensor(), 3, 4)", "(tensor(), 9)", "(tensor(torch.float16), 3)")),
    Slot("nested", "v = v * nested[1][0] + nested[1][1]",
         ("(7, (5, 2))", "(7, (1.5, 2))", "(7, (2, 1.5))", "(7, (3, 2, 4))")),
    Slot("named", "v = v * named.a - named.b",
         ("P(2, 3)", "P(2, 3.5)", "Q(2, 3.5)", "P(2**40, 3)")),
    Slot("C: tl.constexpr", "v = v * C", ("1", "2", "2.0", "True", "0", "tl.constexpr(2)")),
    Slot("MODE: tl.constexpr", "if MODE == 'a':\n        v = v + 1\n    elif MODE == 1:\n"
         "        v = v - 7\n    elif MODE is None:\n        v = v * 5",
         ("'a'", "''", "None", "1", "True", "'A'")),
    Slot("D: tl.constexpr", "v = v.to(D).to(tl.float32) * 1.5",
         ("tl.float16", "tl.bfloat16", "tl.int32")),
    Slot("T: tl.constexpr", "v = v * T[0] + T[1]", ("(1, 2)", "(1, 2.0)", "(1, 2, 3)", "P(1, 2)")),
    Slot("F: tl.constexpr", "v = F(v)", ("f", "Op.apply", "builtin")),
    Slot("O: tl.constexpr", "v = O.apply(v)", ("Op", "Op()")),
    Slot("described", "v = v + tl.sum(tl.sum(described.load([0, 0]).to(tl.float32), 1), 0)",
         ("descriptor([16, 64])", "descriptor([32, 32])", "descriptor([16, 64], torch.float16)",
          "descriptor([16, 64], padding='nan')", "descriptor([16, 64], rows=128)")),
    Slot("z=3", "v = v - z", ("", "3", "3.0", "1", "2**40")),
    Slot("W: tl.constexpr = 3", "v = v / W", ("", "3", "3.0", "5")),
    Slot("maybe=None", "if maybe is not None:\n        v += tl.load(maybe + at).to(tl.float32)",
         ("", "None", "tensor()", "tensor(torch.int32)", "tensor(offset=1)")),
)  # fmt: skip
TENSORS = ("tensor()", "tensor()", "tensor(torch.int32)", "tensor(offset=1)", "tensor(size=4099)")
SIZES = ("1000", "1001", "16", "1", "1024", "1000", "True", "numpy.int64(1000)", "2**40")
OPTIONS = (
    "", "", "maxnreg=24", "maxnreg=64", "enable_fp_fusion=False", "debug=True",
    "launch_pdl=True", "waves_per_eu=2", "default_dot_input_precision='ieee'",
)  # fmt: skip
EDITS = (
    ("return v + 1.25", "return v + 1.5"),
    ("return v * 3.5", "return v * 2.5"),
    ("_semantic.mul", "_semantic.add"),
    ('STATE = {"h": 4}', 'STATE = {"h": 5}'),
    ("z=3", "z=7"),
    ("W: tl.constexpr = 3", "W: tl.constexpr = 7"),
    ("    v = tl.load(x", "    # a comment\n    v = tl.load(x"),
)
KEYS = ((), (), ("n",), ("n", "C"), ("number",))


@dataclass(frozen=True)
class Case:
    """A launch: a module's text, and expressions of its arguments and options."""

    text: str
    arguments: dict[str, str]
    options: str = ""

    def is_alike(self, other: Case) -> bool:
        """Return whether another launch differs only in what a record leaves open."""
        one, two = (
            {**case.arguments, "x": case.arguments["x"].replace("offset=1", "")}
            for case in (self, other)
        )
        return one == two and self.options == other.options


@dataclass
class Kernel:
    """A random kernel, with the declaration that it is launched under."""

    slots: list[Slot]
    key: tuple[str, ...]
    buckets: dict[str, Any]

    @classmethod
    def draw(cls, chance: random.Random) -> Kernel:
        """Return a kernel with one to four parameters of random kinds."""
        slots = chance.sample(SLOTS, chance.randint(1, 4))
        slots.sort(key=lambda slot: "=" in slot.parameter)  # defaults are last
        names = {"n", "x", *(_name(slot) for slot in slots)}
        key = tuple(name for name in chance.choice(KEYS) if name in names)
        buckets = {"n": "pow2"} if "n" in key and chance.random() < 0.5 else {}
        return cls(slots, key, buckets)

    def text(self) -> str:
        """Return the source of a module with the kernel `k` and its `twin`."""
        tuned = [slot for slot in self.slots if "=" not in slot.parameter]
        rest = [slot.parameter for slot in self.slots if "=" in slot.parameter]
        parameters = ["x", "out", "n", *(slot.parameter for slot in tuned), "B: tl.constexpr"]
        parameters += rest
        plain = [name.partition("=")[0] for name in parameters if "constexpr" not in name]
        body = "".join(f"    {slot.body}\n" for slot in self.slots)
        return (
            f"{_HEAD}def k({', '.join(parameters)}):\n"
            "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
            "    tl.device_assert(at >= 0)\n"
            "    v = tl.load(x + at, mask=at < n).to(tl.float32) * 1.5 + depth()\n"
            f"{body}    tl.store(out + at, v, mask=at < n)\n\n"
            f"twin = triton.jit(k, do_not_specialize={plain}, "
            f"do_not_specialize_on_alignment={plain})\n"
            "k = triton.jit(k)\n"
        )

    def first(self, chance: random.Random) -> Case:
        """Return a random launch."""
        arguments = {"x": chance.choice(TENSORS), "n": chance.choice(SIZES[:6])}
        arguments |= {_name(slot): chance.choice(slot.values) for slot in self.slots}
        return Case(self.text(), arguments, chance.choice(OPTIONS[:6]))

    def second(self, first: Case, chance: random.Random) -> Case:
        """Return a launch that differs from the first one in one or two things."""
        case = first
        for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
            what = chance.random()
            if what < 0.6:
                slot = chance.choice(self.slots)
                case = _with(case, _name(slot), chance.choice(slot.values))
            elif what < 0.7:
                name, values = chance.choice((("x", TENSORS), ("n", SIZES)))
                case = _with(case, name, chance.choice(values))
            elif what < 0.85:
                case = replace(case, options=chance.choice(OPTIONS))
            else:
                case = replace(case, text=case.text.replace(*chance.choice(EDITS), 1))
        return case


def _name(slot: Slot) -> str:
    return slot.parameter.partition(":")[0].partition("=")[0]


def _with(case: Case, name: str, value: str) -> Case:
    return replace(case, arguments={**case.arguments, name: value})


def check_launches(seeds: Iterable[int], target: str, pool: ProcessPoolExecutor) -> Outcome:
    """Launch pairs: one kernel for each seed, with `SECONDS` second launches.

    Args:
        seeds: of the kernels and launches.
        target: what to compile for.
        pool: of `quiet_processes`.
    """
    numbers = list(seeds)
    parts = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
    return Outcome.sum(pool.map(_check_batch, parts, [target] * len(parts)))


def _check_batch(seeds: list[int], target: str) -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        prepare_process(Path(name), target)
        for seed in seeds:
            folder = Path(name) / str(seed)
            with contextlib.redirect_stdout(io.StringIO()):
                _check_kernel(outcome, folder, random.Random(seed), f"seed {seed} for {target}")
            shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _check_kernel(outcome: Outcome, folder: Path, chance: random.Random, about: str) -> None:
    kernel = Kernel.draw(chance)
    for _ in range(5):  # a random launch may well be nonsense
        first = kernel.first(chance)
        try:
            before = _Launch(folder / "first", kernel, first, folder / "store")
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            break
    else:
        outcome.counts.update(pairs=SECONDS, refused=SECONDS)
        return
    if not (folder / "store").exists():
        outcome.cases["unstored"].append(f"{about}: {first.arguments}")
        return
    for number in range(SECONDS):
        second = kernel.second(first, chance)
        outcome.counts["pairs"] += 1
        copy = folder / f"store {number}"
        copy_store(folder / "store", copy)
        try:
            after = _Launch(folder / str(number), kernel, second, copy)
            is_same = before.code == after.code or before.twin == after.twin
        except Exception:
            outcome.counts["refused"] += 1
        else:
            report = [f"{about}, {number}", f"key {kernel.key}, buckets {kernel.buckets}",
                      f"{first.arguments} {first.options}", f"{second.arguments} {second.options}",
                      second.text]  # fmt: skip
            _compare(outcome, before, after, is_same, "\n".join(report))


def _compare(outcome: Outcome, before: _Launch, after: _Launch, is_same: bool, report: str) -> None:
    if not after.benchmarked:
        outcome.counts["reused"] += 1
        if not is_same:
            outcome.cases["noticed" if after.is_tuned_later() else "wrong"].append(report)
    elif is_same and before.case.is_alike(after.case) and before.key == after.key:
        outcome.cases["costly"].append(report)
    else:
        outcome.counts["needless"] += is_same


class _Launch:
    """A launch as by a new process, and one of the twin with the same config, once it counts."""

    def __init__(self, folder: Path, kernel: Kernel, case: Case, store: Path) -> None:
        import torch
        import triton

        from dejavu_cache import cached_autotune

        self.folder, self.kernel, self.case, self.store = folder, kernel, case, store
        module = import_anew(folder / "kernels.py", case.text)
        configs = [triton.Config({"B": 64}, num_stages=stages) for stages in (2, 3)]
        tuned = cached_autotune(
            configs=configs, key=list(kernel.key), buckets=kernel.buckets, store=store,
            do_bench=without_timing, check=False, tune_configs=1,
        )(module.k)  # fmt: skip
        values = _values(module)
        named = {name: eval(text, values) for name, text in case.arguments.items() if text}
        named["out"] = torch.zeros(1 << 12)
        options = eval(f"dict({case.options})", {})
        arguments = [named.pop("x"), named.pop("out"), named.pop("n")]
        self.code = code_of(tuned[(4,)](*arguments, **named, **options))
        self.benchmarked = tuned.benchmarked
        config = {**configs[0].all_kwargs(), **options}
        self._launch_twin = partial(module.twin[(4,)], *arguments, **named, **config)
        self.key = [_key_value(case, kernel, name) for name in kernel.key]

    @cached_property
    def twin(self) -> str:
        """The machine code of the twin."""
        with contextlib.redirect_stdout(io.StringIO()):
            return code_of(self._launch_twin())

    def is_tuned_later(self) -> bool:
        """Return whether another process no longer takes the record."""
        again = _Launch(self.folder / "again", self.kernel, self.case, self.store)
        return again.benchmarked > 0


def _key_value(case: Case, kernel: Kernel, name: str) -> str:
    text = case.arguments.get(name, "")
    if name in kernel.buckets:
        with contextlib.suppress(ValueError):
            return f"2**{(int(text) - 1).bit_length()}"
    return text


def _values(module: Any) -> dict[str, Any]:
    """Return the names that expressions of arguments may use."""
    import numpy
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    def tensor(dtype: Any = torch.float32, size: int = 4096, offset: int = 0) -> Any:
        return torch.zeros(size + offset, dtype=dtype)[offset:]

    def descriptor(
        block: list[int], dtype: Any = torch.float32, rows: int = 64, padding: str = "zero"
    ) -> Any:
        base = torch.zeros(rows, 64, dtype=dtype)
        return TensorDescriptor(base, list(base.shape), list(base.stride()), block, padding)

    return {**vars(module), "numpy": numpy, "torch": torch, "tensor": tensor,
            "descriptor": descriptor}  # fmt: skip

"""What a heuristic reads besides its arguments is part of the identity, or the kernel has none."""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path

import pytest
from support.heuristic_identity import HEAD, KERNEL, identity_of
from support.kernels import load
from support.no_hang import no_hang

from dejavu_cache.triton_internals import running_code
from dejavu_cache.triton_internals.identity import KernelIdentity, identify


def block(body: str) -> str:
    return f"def block(args):\n    {body}\n"


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("from tile_settings import SIZE", "SIZE"),
        ("import tile_settings", "tile_settings.SIZE"),
        ("import tile_settings as settings", "settings.SIZE"),
        ("from tile_package import tile_settings", "tile_settings.SIZE"),
    ],
)
def test_an_import_inside_a_heuristic_counts_by_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, value: str
) -> None:
    identities = []
    for size in (64, 128):
        settings = types.ModuleType("tile_settings")
        settings.SIZE = size  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tile_settings", settings)
        monkeypatch.setitem(sys.modules, "tile_package", types.ModuleType("tile_package"))
        monkeypatch.setitem(sys.modules, "tile_package.tile_settings", settings)
        identities.append(identity_of(tmp_path, block(f"{statement}; return {value}")))
    assert [identity.unstored for identity in identities] == [None, None]
    assert identities[0] != identities[1]


@pytest.mark.parametrize(
    "body",
    [
        "from not_imported_yet import SIZE; return SIZE",
        "import not_imported_yet; return not_imported_yet.SIZE",
        "from . import settings; return settings.SIZE",
    ],
)
def test_a_module_that_only_the_heuristic_imports_is_named(tmp_path: Path, body: str) -> None:
    reason = identity_of(tmp_path, block(body)).unstored
    assert reason is not None
    assert "import it at the module's top" in reason


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('return int(os.getenv("SIZE", "64"))', "os.getenv"),
        ("return 128 if torch.get_float32_matmul_precision() == 'high' else 64", "torch.get_float"),
        ("return 128 if torch.is_grad_enabled() else 64", "torch.is_grad_enabled"),
        ('return globals()["SIZE"]', "globals"),
        ("return eval('SIZE')", "eval"),
        ('return int(open("/size").read())', "open"),
        ('return int(Path("/size").read_text())', "Path"),
        ("return random.choice([64, 128])", "random.choice"),
        ("return int(time.time())", "time.time"),
        ("return datetime.datetime.now().hour", "datetime.datetime.now"),
        ('return getattr(os, "cpu_count")()', "os"),
        ("return hash('size') % 2 * 64 + 64", "hash"),
        ("return not_defined_anywhere", "not_defined_anywhere"),
        ("return functools.partial(os.cpu_count)()", "os.cpu_count"),
        ("return getattr(block, args['name'])", "block"),
        ("import os as system; return int(system.getenv('SIZE'))", "os.getenv"),
        ("return triton.set_allocator(None)", "triton.set_allocator"),
    ],
)
def test_a_heuristic_that_reads_what_nothing_stands_for_is_not_stored(
    tmp_path: Path, body: str, named: str
) -> None:
    reason = identity_of(tmp_path, block(body)).unstored
    assert reason is not None
    assert named in reason


@pytest.mark.parametrize("expression", ["tile.size", 'getattr(tile, "size")'])
def test_an_attribute_of_a_function_counts(tmp_path: Path, expression: str) -> None:
    def identity(size: int) -> KernelIdentity:
        tile = f"def tile(): pass\ntile.size = {size}\n"
        return identity_of(tmp_path, tile + block(f"return {expression}"))

    assert identity(64).unstored is None
    assert identity(64) != identity(128)


@pytest.mark.parametrize("library", ["math.ceil", "textwrap.dedent", "triton.language.dtype.to_ir"])
def test_a_function_under_a_library_functions_name_is_read(tmp_path: Path, library: str) -> None:
    def identity(size: int) -> KernelIdentity:
        tile = f"@functools.wraps({library})\ndef tile(n):\n    return {size}\n"
        return identity_of(tmp_path, "import textwrap\n" + tile + block("return tile(1)"))

    assert identity(64).unstored is None
    assert identity(64) != identity(128)


@pytest.mark.parametrize(
    "heuristic",
    [
        "block = lambda args: args['x'] is not None",
        "block = lambda args: min(max(triton.next_power_of_2(args['n']), 16), 128)",
        "block = lambda args: triton.cdiv(args['n'], 4) if args['x'].is_contiguous() else 1",
        "block = lambda args: args['x'].dtype in (torch.bfloat16, torch.float8_e5m2)",
        "block = lambda args: args['x'].stride(0) % 16 == 0 and args['x'].element_size() == 2",
        "block = lambda args: 2 ** math.ceil(math.log2(args['n']))",
        "block = lambda args: torch.cuda.get_device_capability()[0] >= 9",
        "block = lambda args: torch.version.hip is not None",
        "block = lambda args: torch.finfo(args['x'].dtype).bits",
        "block = lambda args: functools.reduce(operator.mul, args['x'].shape, 1)",
        "block = lambda args: isinstance(args['x'], torch.Tensor) and any(args['x'].shape)",
        "block = lambda args: getattr(args['x'], 'is_cuda', False)",
        "block = lambda args: 1 if hasattr(tl, 'float8e4b8') else tl.constexpr(2)",
        "block = lambda args: 64 if hasattr(triton, 'set_allocator') else 128",
        "block = lambda args: getattr(tl, args['dtype']).primitive_bitwidth",
        "@functools.cache\ndef tile(n):\n    return n * 2\nblock = lambda args: tile(args['n'])",
        """
def block(args: dict[str, Any]) -> int:
    import math as m
    def double(n):
        return 2 * n
    try:
        sizes = {}
        sizes["n"] = sorted(double(n) for n in range(args["n"]))
        sizes.update(args)
    except (KeyError, ValueError) as error:
        warnings.warn(str(error))
        return 64
    match sizes:
        case {"n": [first, *others], **rest}:
            return m.ceil(first + len(others) + len(rest))
    for left, right in itertools.pairwise(sizes["n"]):
        assert left <= right, f"{left} {right}"
    return 128
""",
    ],
)
def test_heuristics_of_their_arguments_are_stored(tmp_path: Path, heuristic: str) -> None:
    assert identity_of(tmp_path, f"{heuristic}\n").unstored is None


def test_a_class_with_methods_of_its_own_is_read(tmp_path: Path) -> None:
    source = """
import dataclasses, enum, collections

class Mode(enum.Enum):
    FAST = 1
    @classmethod
    def parse(cls, name):
        return cls[name.upper()]

@dataclasses.dataclass(frozen=True)
class Plan:
    depth: int
    mode: Mode = Mode.FAST
    def __post_init__(self):
        object.__setattr__(self, "depth", self.depth + 1)
    def __hash__(self):
        return hash((self.depth, self.mode))
    @property
    def size(self):
        return self.depth * 64 if self.mode is Mode.FAST else super().__sizeof__()

class Named(collections.namedtuple("Named", ["size"])):
    def __new__(cls, size):
        return super().__new__(cls, size)

PLAN = Plan(1)
NAMED = Named(2)
"""
    identity = identity_of(tmp_path, source + block("return PLAN.size + NAMED.size"))
    assert identity.unstored is None


@pytest.mark.parametrize(
    ("state", "body", "named"),
    [
        ("_memo = {}", "_memo[args['n']] = 64; return _memo[args['n']]", "_memo"),
        ("_memo = {}", "return _memo.setdefault(args['n'], 64)", "_memo"),
        ("_sizes = [64]", "_sizes.append(args['n']); return _sizes[0]", "_sizes"),
        ("_memo = {'a': {}}", "_memo['a'].update(b=1); return 64", "_memo"),
        ("_size = None", "global _size; _size = _size or args['n']; return _size", "_size"),
        ("def tile(): pass\ntile.size = 1", "tile.size += 1; return tile.size", "tile"),
        ("_memo = {}", "keep = lambda n: _memo.update(n=n); keep(1); return 64", "_memo"),
    ],
)
def test_a_memo_written_by_hand_is_named(tmp_path: Path, state: str, body: str, named: str) -> None:
    """Else the identity would depend on what the process launched before."""
    reason = identity_of(tmp_path, f"{state}\n{block(body)}").unstored
    assert reason is not None
    assert f"{named} changes while the program runs" in reason
    assert "functools.cache" in reason


def test_a_cached_function_is_read_as_what_it_wraps(tmp_path: Path) -> None:
    source = "@functools.cache\n" + block("return 64 if args else 128")
    module = load(tmp_path / "cached.py", HEAD + source + KERNEL)
    before = identify(module.k, [])
    module.block(())
    assert identify(module.k, []) == before
    assert identity_of(tmp_path, source.replace("128", "256")) != before


@pytest.mark.parametrize(
    ("state", "body", "named"),
    [
        ("_memo = {}", "memo = _memo; memo['n'] = args['n']; return memo['n']", "_memo"),
        ("_sizes = [64]", "sizes = _sizes; sizes.append(args['n']); return sizes[0]", "_sizes"),
        ("_memo = {}", "one = _memo; two = one; two.update(args); return two['n']", "_memo"),
        ("_memo = {}", "return 64 if (memo := _memo).setdefault('n', 1) else 128", "_memo"),
        ("_memo = {'a': []}", "kept = _memo['a']; kept.append(1); return len(kept)", "_memo"),
    ],
)
def test_a_memo_under_a_name_of_the_heuristics_own_is_named(
    tmp_path: Path, state: str, body: str, named: str
) -> None:
    reason = identity_of(tmp_path, f"{state}\n{block(body)}").unstored
    assert reason is not None
    assert f"{named} changes while the program runs" in reason


def test_a_memo_in_a_default_is_named(tmp_path: Path) -> None:
    source = "def block(args, memo={}):\n    return memo.setdefault(args['n'], 64)\n"
    reason = identity_of(tmp_path, source).unstored
    assert reason is not None
    assert "memo changes while the program runs" in reason


def test_a_memo_that_a_name_reaches_in_two_steps_is_named(tmp_path: Path) -> None:
    body = "memo = _memo; memo = memo['a']; memo.append(1); return 64"
    reason = identity_of(tmp_path, f"_memo = {{'a': []}}\n{block(body)}").unstored
    assert reason is not None
    assert "_memo changes while the program runs" in reason


@pytest.mark.parametrize(("branches", "is_stored"), [(3, True), (20, False)])
def test_names_that_stand_for_each_other_do_not_stall_a_launch(
    tmp_path: Path, branches: int, is_stored: bool
) -> None:
    """A walk through a tree is one: followed without end, three branches took a minute."""
    ways = " or ".join(f"node.branch{number}" for number in range(branches))
    walk = f"node = args['n']\n    while node:\n        node.seen = 1\n        node = {ways}\n"
    reason = identity_of(tmp_path, f"def block(args):\n    {walk}    return 64\n").unstored
    assert (reason is None) == is_stored
    assert is_stored or "ways" in str(reason)


@pytest.mark.parametrize(
    ("value", "reads"),
    [
        ("Mode.FAST", "64 if MODE is Mode.FAST else 128"),
        ("{'tile': 64}", "64 if isinstance(MODE, dict) else 128"),
        ("SimpleNamespace(mode=64)", "64 if isinstance(MODE, SimpleNamespace) else 128"),
    ],
)
def test_a_constexpr_is_told_from_the_object_in_it(tmp_path: Path, value: str, reads: str) -> None:
    imports = "import enum\nfrom types import SimpleNamespace\n"
    mode = "class Mode(enum.Enum):\n    FAST = 1\n"
    identities = [
        identity_of(tmp_path, f"{imports}{mode}MODE = {held}\n{block(f'return {reads}')}")
        for held in (value, f"tl.constexpr({value})")
    ]
    assert [identity.unstored for identity in identities] == [None, None]
    assert identities[0] != identities[1]


@pytest.mark.parametrize(
    "declaration",
    [
        "class Mode(enum.Enum):\n    FAST = {}\nMODE = Mode.FAST",
        "@dataclass(frozen=True)\nclass Mode:\n    value: object\nMODE = Mode({})",
        "class Mode:\n    value = {}\nMODE = Mode()",
    ],
)
def test_a_constexpr_is_told_from_the_number_in_it_in_a_class(
    tmp_path: Path, declaration: str
) -> None:
    imports = "import enum\nfrom dataclasses import dataclass\n"
    reads = block("return 64 if isinstance(MODE.value, int) else 128")
    identities = [
        identity_of(tmp_path, f"{imports}{declaration.format(held)}\n{reads}")
        for held in ("1", "tl.constexpr(1)")
    ]
    assert [identity.unstored for identity in identities] == [None, None]
    assert identities[0] != identities[1]


@pytest.mark.parametrize("pair", ["({0}, {0})", "[{0}, {0}]"])
def test_a_value_that_holds_another_twice_at_each_level_is_read_in_bounded_time(
    tmp_path: Path, pair: str
) -> None:
    identities = []
    for leaf in (1, 2):
        nested = f"NESTED = ({leaf},)\nfor _ in range(24): NESTED = {pair.format('NESTED')}\n"
        with no_hang():
            identities.append(identity_of(tmp_path, nested + block("return len(NESTED)")))
    assert [identity.unstored for identity in identities] == [None, None]
    assert identities[0] != identities[1]


def test_each_of_many_lambdas_on_a_line_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def counting(source: object, *rest: object, **options: object) -> object:
        compiled.append(source)
        return compile(source, *rest, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(running_code, "compile", counting, raising=False)
    sizes = ", ".join(f"lambda args: {size}" for size in range(60))
    identity = identity_of(tmp_path, f"SIZES = [{sizes}]\n" + block("return SIZES[3](args)"))
    assert identity.unstored is None
    assert sum(isinstance(source, ast.Expression) for source in compiled) == 60

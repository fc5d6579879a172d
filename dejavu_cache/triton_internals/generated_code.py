"""Tell code by the IR that Triton generates from it, which is the same for the same code.

Triton's own key of a function changes with a comment, a moved line or the name of a local. The IR
keeps of these only locations and the names of values and functions, which are taken away here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from ..model.record import Record, RecordedLaunch
from ..model.scenario import Config
from ..system.background_threads import dropping_errors
from .compilation import Compilation, compile_config, encode_launch, launch_of, recreate_compilation
from .config_names import describe
from .environment import backend_for, current_target, is_interpreting
from .identity import heuristics_of, jit_function
from .versions import is_covered

if TYPE_CHECKING:
    from triton import Config as TritonConfig
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner

COMPARED_ONLY = {"compared only": True}
"""An option, which no launch has, of those of which nothing can be compiled again."""

MOST_GENERATED = 4
"""Largest number of recorded launches whose code is generated to compare one record."""

_STRING = r'"[^"]*"'  # MLIR writes a quotation mark inside a string as \\22
_SYMBOL = rf"@(?:{_STRING}|[A-Za-z0-9_$.-]+)"
_INSIDE = rf'(?:[^()"]|{_STRING})*'
_LOCATION = rf"loc\((?:{_INSIDE}|\((?:{_INSIDE}|\({_INSIDE}\))*\))*\)"
# Each alternative begins with a letter or sign of its own, by which Python finds the next match.
_TOKEN = re.compile(
    rf"(?P<string>{_STRING})|(?P<location>{_LOCATION})|(?P<function>tt\.func )"
    rf"|(?P<symbol>{_SYMBOL})|(?P<value>%[A-Za-z0-9_$.-]+)"
)
_DEFINITION = re.compile(rf"tt\.func (?:\w+ )?({_SYMBOL})")


def code_of_text(text: str) -> str:
    """Return 32 hexadecimal digits that are equal for two texts of one module in Triton's IR.

    The functions that the module defines, and the values of each, are numbered in the order in
    which they occur, so that what refers to what still counts.
    """
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#loc"))
    defined = set(_DEFINITION.findall(lines))
    functions: dict[str, str] = {}
    values: dict[str, str] = {}

    def neutral(match: re.Match[str]) -> str:
        token, kind = match[0], match.lastgroup
        if kind == "value":
            return values.setdefault(token, f"%{len(values)}")
        if kind == "location":
            return ""
        if kind == "string":
            return token.replace(" ", "\0")
        if kind == "function":  # names of values are the function's own
            values.clear()
        elif token in defined:
            return functions.setdefault(token, f"@{len(functions)}")
        return token

    without_spaces = _TOKEN.sub(neutral, lines).replace(" ", "")
    return hashlib.sha256(without_spaces.encode()).hexdigest()[:32]


def code_of_binary(kernel: CompiledKernel) -> str | None:
    """Return the code that a kernel was compiled from; None if its IR was not kept."""
    text = getattr(kernel, "asm", {}).get("source")
    return code_of_text(text) if isinstance(text, str) else None


def tuned_launches(
    autotuner: Autotuner, config: TritonConfig, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[RecordedLaunch, ...]:
    """Record the launch of a config that was just measured, with the code that was generated.

    The autotuner's `nargs` are the launch's. Nothing is returned where it cannot be recorded.
    """
    if is_interpreting():
        return ()
    has_heuristics = bool(heuristics_of(autotuner.fn))
    with dropping_errors():  # an unrecorded launch costs a compilation later, and no tune
        compiled = compile_config(autotuner, config, args, kwargs)
        launch = launch_of(compiled.src, compiled.metadata, config, heuristics=has_heuristics)
        noted: dict[str, Any] = {
            "config": describe(config).digest,
            "code": code_of_binary(compiled),
        }
        if launch is None:  # its code can be compared all the same
            launch = encode_launch(compiled.src, config.all_kwargs())
            noted["options"] = COMPARED_ONLY
        return (launch.model_copy(update=noted),)
    return ()


def has_equal_code(kernel: Any, record: Record, declared: Mapping[Config, Any]) -> bool:
    """Return whether Triton generates today what it did for a record's winner, as declared."""
    winner = record.winner
    if winner is None or not record.is_finished or winner.config not in declared:
        return False
    config, launches = declared[winner.config], record.launches or ()
    return generates_equal_code(kernel, launches, winner.config, config) is True


def generates_equal_code(
    kernel: Any, launches: Sequence[RecordedLaunch], name: Config, config: TritonConfig
) -> bool | None:
    """Return whether Triton generates today what it did for a recorded launch of a config's name.

    None stands for launches of which none says what was generated, or none can be generated.
    """
    function, target, answer = jit_function(kernel), current_target(), None
    refused = _refused.setdefault(function.fn, set())
    for launch in _launches_with_code(launches, name)[:MOST_GENERATED]:
        asked = f"{function.cache_key} {name.digest} {launch.model_dump_json()}"
        if asked in refused:
            answer = False
            continue
        # The kernel's author may have written anything.
        with dropping_errors(f"{function.__name__} cannot be generated"):
            compilation = recreate_compilation(function, launch, config.all_kwargs(), target)
            if code_of_text(_generate(compilation)) == launch.code:
                return True
            refused.add(asked)
            answer = False
    return answer


def find_other_code(
    autotuner: Autotuner,
    launches: Sequence[RecordedLaunch],
    config: TritonConfig,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    is_same_scenario: bool = True,
) -> str | None:
    """Compile a recorded config for a launch; return its code if that is not what was recorded.

    The autotuner's `nargs` are the launch's. Where the launch is aligned differently than those
    that are recorded, one of these is generated again, once for each kernel in a process. If the
    record is of the launch's scenario, heuristics may differ by what a bucket promises; otherwise,
    by nothing.

    Returns:
        None if it is equal, or if nothing can be said: the IR was not kept, or to compile ahead of
        the launch would call hooks of the function. What cannot be generated again counts as other.
    """
    function, name = jit_function(autotuner), describe(config)
    noted = _launches_with_code(launches, name)
    if not noted or not is_covered(function) or function.pre_run_hooks:
        return None
    code = None
    with dropping_errors():  # the launch itself reports them
        compiled = compile_config(autotuner, config, args, kwargs)
        now = encode_launch(compiled.src, config.all_kwargs())
        code = code_of_binary(compiled)
    if code is None:
        return None
    computed = heuristics_of(autotuner.fn).keys()
    for launch in noted:
        if _specialization(launch) == _specialization(now):
            return None if launch.code == code else code
        if not is_same_scenario and _values(launch, computed) != _values(now, computed):
            return code
    if _descriptors(now) not in map(_descriptors, noted):  # by another hook of the config
        return code
    if function.fn in _generated_again:
        return None
    _generated_again.add(function.fn)
    return None if generates_equal_code(autotuner.fn, noted, name, config) else code


_refused: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""By Python function of a kernel, the recorded launches that are known to be of other code.

Without it, each write to a store would have their IR generated again, 5 to 100 ms a launch.
"""
_generated_again: WeakSet[Any] = WeakSet()
"""The Python functions of kernels of which a recorded launch was generated again."""


def _launches_with_code(launches: Sequence[RecordedLaunch], name: Config) -> list[RecordedLaunch]:
    return [launch for launch in launches if launch.code and launch.config == name.digest]


def _specialization(launch: RecordedLaunch) -> tuple[Any, ...]:
    """Return what a launch was compiled for."""
    return launch.signature, launch.attrs, launch.constants


def _descriptors(launch: RecordedLaunch) -> dict[str, str]:
    types = launch.signature.items()
    return {name: type_ for name, type_ in types if type_.startswith("tensordesc")}


def _values(launch: RecordedLaunch, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in launch.constants.items() if name in names}


def _generate(compilation: Compilation) -> str:
    """Return the IR that `triton.compile` begins with."""
    from triton._C.libtriton import ir

    source, target = compilation.source, compilation.target
    backend = backend_for(target)
    options = backend.parse_options(dict(compilation.options, **source.parse_options()))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    return str(module)

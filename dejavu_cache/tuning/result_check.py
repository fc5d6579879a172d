"""Compare what a config computes with what the default config computes, before it may win.

A config can be fast because it is wrong: a tile that does not divide the problem, or a race between
programs. Timing cannot tell, so the results of the prospective winner are compared with the
default's on the launch that is tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .config_failures import is_out_of_memory
from .tensor_comparison import describe_difference, have_same_bits

__all__ = ["CheckOptions", "ResultChecker", "Verdict"]

MEMORY_SHARE = 0.5
"""Share of the device's free memory that copies may take; larger arguments count as inputs."""

REPEATS = 2
"""Number of times a config's results are computed: a race need not show in the first launch."""

PROBED_OUTPUTS = 8
"""Number of arguments that are tried as outputs where a launch seems to change nothing."""


@dataclass(frozen=True)
class CheckOptions:
    """Declarations of a kernel's author about comparing results.

    Attributes:
        tolerance: the largest relative difference, for all tensors or by argument; the default
            depends on the dtype, see `tensor_comparison.TOLERANCES`.
        ignore: arguments whose content depends on the config, such as scratch memory.
        reference: computes the expected results in place of the default config. It is called with
            the launch's arguments by name and writes its results into them.
        repeatable: whether two launches give the same results. Set it to False for kernels that
            race or accumulate in any order by design: their results are compared only once.
    """

    tolerance: float | Mapping[str, float] | None = None
    ignore: Sequence[str] = ()
    reference: Callable[[Mapping[str, Any]], None] | None = None
    repeatable: bool = True


class Verdict(NamedTuple):
    """The outcome of a comparison.

    Attributes:
        outcome: `unchecked` where nothing could be compared.
        evidence: which argument differs and how far, or why nothing could be compared.
    """

    outcome: Literal["right", "wrong", "unchecked"]
    evidence: str = ""


class ResultChecker:
    """Compares the results of a launch's configs with the default's.

    The arguments have their original content again after each comparison.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        launch: Callable[[Any], AbstractContextManager[None]],
        default: Any,
        options: CheckOptions,
    ) -> None:
        """Set up the comparison for one launch; nothing is launched yet.

        Args:
            arguments: the launch's arguments by name.
            launch: launches a config; its results stand while the context is open.
            default: the config whose results count as right.
            options: declarations of the kernel's author.
        """
        self._arguments = arguments
        self._launch = launch
        self._default = default
        self._options = options
        self._tensors: dict[str, Any] = {}
        self._originals: dict[str, Any] = {}
        """The arguments' content before the first launch."""
        self._inputs: dict[str, Any] = {}
        """Content to write before each launch that is compared."""
        self._expected: dict[str, Any] = {}
        self._reason = "the default config was not launched"

    def prepare(self) -> None:
        """Compute the expected results.

        It comes before anything else of the launch runs: afterwards the arguments hold what some
        config wrote, and a config that writes nothing would look right.
        """
        tensors = self._comparable_tensors()
        try:
            self._copy(tensors)
            self._compute_expected()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._expected = {}
            self._reason = "the device has no memory left for copies of the arguments"
        self._originals = {name: self._originals[name] for name in self._expected}
        self._restore(self._originals)

    def check(self, config: Any) -> Verdict:
        """Compare a config's results with the expected ones."""
        if not self._expected:
            return Verdict("unchecked", self._reason)
        repeats = REPEATS if self._options.repeatable else 1
        try:
            evidence = next(filter(None, (self._compare(config) for _ in range(repeats))), "")
            return self._judge(evidence) if evidence else Verdict("right")
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return Verdict("unchecked", "the device has no memory left to compare results")
        finally:
            self._restore(self._originals)

    def _judge(self, evidence: str) -> Verdict:
        """Tell a wrong config from a kernel whose default does not repeat its results either."""
        unrepeatable = "" if self._options.reference else self._compare(self._default)
        if unrepeatable:
            reason = f"the default config does not repeat its results: {unrepeatable}"
            return Verdict("unchecked", reason)
        return Verdict("wrong", evidence)

    def _comparable_tensors(self) -> dict[str, Any]:
        """Return the tensors among the arguments, parts of tuples by names such as `outs[0]`."""
        return {
            part: tensor
            for name, value in self._arguments.items()
            if name not in self._options.ignore
            for part, tensor in _tensors_of(name, value)
            if _is_comparable(tensor)
        }

    def _copy(self, tensors: Mapping[str, Any]) -> None:
        """Copy the tensors, the smallest first, as far as memory reaches."""
        budget = _free_memory(tensors) * MEMORY_SHARE
        for name, tensor in sorted(tensors.items(), key=lambda item: _size_in_bytes(item[1])):
            budget -= 2 * _size_in_bytes(tensor)
            if budget < 0:
                break
            self._tensors[name] = tensor
            self._originals[name] = tensor.detach().clone()

    def _compute_expected(self) -> None:
        self._inputs = dict(self._originals)
        self._run_expected()
        changed = [name for name in self._originals if self._has_changed(name)]
        self._expected = {name: self._tensors[name].detach().clone() for name in changed}
        if not changed and self._options.reference is None:
            self._probe_outputs()
        self._inputs = {name: self._inputs[name] for name in self._expected}
        self._reason = "the default config changes no argument that could be copied"

    def _run_expected(self) -> None:
        if self._options.reference is not None:
            self._options.reference(self._arguments)
            return
        with self._launch(self._default):
            pass

    def _probe_outputs(self) -> None:
        """Find outputs that already held the results: they hold them again after being overwritten.

        Only floating-point arguments are overwritten, since integers may be addresses.
        """
        import torch

        floating = [name for name, tensor in self._tensors.items() if tensor.is_floating_point()]
        for name in floating[:PROBED_OUTPUTS]:
            self._restore(self._originals)
            blank = torch.full_like(self._originals[name], float("nan"))
            self._restore({name: blank})
            is_blank_different = self._has_changed(name)
            with self._launch(self._default):
                is_output = is_blank_different and not self._has_changed(name)
            if is_output:
                self._inputs[name], self._expected[name] = blank, self._originals[name]
        self._restore(self._originals)

    def _has_changed(self, name: str) -> bool:
        return not have_same_bits(self._tensors[name], self._originals[name])

    def _compare(self, config: Any) -> str:
        """Describe where a config's results differ; return an empty string if they agree."""
        self._restore(self._inputs)
        with self._launch(config):
            for name, expected in self._expected.items():
                difference = describe_difference(
                    self._tensors[name], expected, self._tolerance(name)
                )
                if difference:
                    return f"{name} {difference}"
        return ""

    def _tolerance(self, name: str) -> float | None:
        tolerance = self._options.tolerance
        if isinstance(tolerance, Mapping):
            return tolerance.get(name.partition("[")[0])
        return tolerance

    def _restore(self, contents: Mapping[str, Any]) -> None:
        """Write contents into the arguments, unseen by autograd, as a kernel's own writes are."""
        import torch

        for name, content in contents.items():
            tensor = self._tensors[name]
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.data.copy_(content)


def _tensors_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an argument's tensors by name, those behind tensor descriptors included."""
    import torch

    if isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from _tensors_of(f"{name}[{index}]", part)
    else:
        tensor = getattr(value, "base", value)
        if isinstance(tensor, torch.Tensor):
            yield name, tensor


def _is_comparable(value: Any) -> bool:
    """Return whether a tensor has elements of which none share memory."""
    import torch

    return (
        value.layout is torch.strided
        and value.numel() > 0
        and all(
            stride > 0 or size == 1
            for stride, size in zip(value.stride(), value.shape, strict=True)
        )
    )


def _size_in_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _free_memory(tensors: Mapping[str, Any]) -> float:
    import torch

    devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
    return min(
        (float(torch.cuda.mem_get_info(device)[0]) for device in devices), default=float("inf")
    )

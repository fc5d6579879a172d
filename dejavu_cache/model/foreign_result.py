"""Results of other autotuners: Triton's own, triton-dejavu's, FLA's and vLLM's.

Their files name the best config of a launch by the values of its key arguments and the dtypes of
its tensors, without the tensors' names and, except for Triton's own, without the kernel's code.
Such a result cannot become a `Record`; it is stored as it is and compared with a launch that misses
(`ForeignResult.fits`). The readers of the files are in `dejavu_cache.integrations`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..errors import StoreError
from .scenario import Config, Milliseconds, Text, sort_by_name

__all__ = [
    "ForeignResult",
    "ForeignTiming",
    "alphanumeric",
    "format_foreign_results",
    "parse_foreign_results",
    "version_order",
]


_Label = Annotated[str, Field(max_length=1 << 16)]
"""Any text that a file can hold; without a limit, pydantic would not refuse half a character."""


class ForeignTiming(BaseModel):
    """One config and, if its file states it, its timing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Config
    median: Milliseconds | None = None
    p20: Milliseconds | None = None
    p80: Milliseconds | None = None

    def means(self, declared: Config) -> bool:
        """Return whether this is a declared config.

        The meta-parameters must be equal. Of the compiler options, only those that both sides set
        are compared.
        """
        options = self.config.options
        return self.config.params == declared.params and all(
            declared.options[name] == options[name] for name in options if name in declared.options
        )


class ForeignResult(BaseModel):
    """The result of another tool for one launch.

    Attributes:
        origin: the tool.
        function: the kernel's name, without its module.
        key: the key arguments' values, then the tensors' dtypes, as text, in the order of the call;
            only the dtypes if `named` has the values.
        named: values by argument, where a file names the arguments. "False" and "0" also fit
            launches of kernels that lack the argument.
        device: the GPU's name as the file has it, of which letters and digits count; empty if the
            file does not state it.
        triton: the Triton version; empty if the file does not state it.
        proof: Triton's hash of kernel, configs, compiler and key; only in Triton's own results.
        timings: the configs, the fastest first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    origin: Literal["triton", "triton-dejavu", "fla", "vllm"]
    function: Text
    key: tuple[_Label, ...] = ()
    named: Annotated[dict[_Label, _Label], AfterValidator(sort_by_name)] = Field(
        default_factory=dict
    )
    device: _Label = ""
    triton: _Label = ""
    proof: _Label = ""
    timings: tuple[ForeignTiming, ...] = Field(min_length=1)

    @property
    def subject(self) -> str:
        """Return what the result is of: all but its timings. A later result replaces an earlier."""
        return self.model_dump_json(exclude={"timings"})

    def fits(
        self,
        keys: Sequence[Sequence[str]],
        named: Mapping[str, str],
        device: str,
        triton: str,
        *,
        loose: bool = False,
    ) -> bool:
        """Return whether the result applies to a launch.

        Args:
            keys: the launch's key with its raw values, and with its bucketed values.
            named: the launch's numbers, flags and texts by argument, the key's bucketed.
            device: the name of the launch's GPU.
            triton: the Triton version of the launch.
            loose: whether results of other versions apply too.
        """
        if self.named:
            same_key = self._fits_by_name(keys, named)
        else:
            same_key = self.key in [tuple(key) for key in keys]
        same_device = alphanumeric(self.device) in ("", alphanumeric(device))
        return same_key and same_device and (loose or self.triton in ("", triton))

    def _fits_by_name(self, keys: Sequence[Sequence[str]], named: Mapping[str, str]) -> bool:
        if any(
            named[name] != value if name in named else value not in _UNSET
            for name, value in self.named.items()
        ):
            return False
        return not self.key or any(tuple(key[-len(self.key) :]) == self.key for key in keys)


_UNSET = ("False", "0")


def version_order(version: str) -> tuple[int, ...]:
    """Return what sorts versions, as files state them; only their numbers count."""
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts if re.fullmatch("[0-9]{1,9}", part))


def alphanumeric(name: str) -> str:
    """Drop everything but letters and digits: each tool replaces the rest of a GPU's name."""
    return re.sub(r"[^0-9A-Za-z]+", "", name)


def format_foreign_results(results: Iterable[ForeignResult]) -> str:
    """Format results as JSON lines, sorted; of several with one subject, the last one counts."""
    latest = {result.subject: result for result in results}
    lines = [result.model_dump_json(exclude_defaults=True) + "\n" for result in latest.values()]
    return "".join(sorted(lines))


def parse_foreign_results(text: str, where: str) -> list[ForeignResult]:
    """Parse results from JSON lines.

    Args:
        text: the lines.
        where: the file's name, for the error message.

    Raises:
        StoreError: a line is not a result.
    """
    try:
        return [ForeignResult.model_validate_json(line) for line in text.split("\n") if line]
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        raise StoreError(f"{where} does not hold results of other tools: {message}") from None

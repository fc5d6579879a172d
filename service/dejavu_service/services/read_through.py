"""Namespaces that answer from another one what they do not have themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from dejavu_cache.errors import SettingsError

from .access import NAMESPACE, NAMESPACE_PATTERN, Principal, most_specific

__all__ = ["ReadThrough", "RecordView"]


class RecordView(NamedTuple):
    """The records of a context as a reader gets them.

    Attributes:
        namespace: The namespace that is read.
        context: The digest of the context.
        beneath: The namespace that answers what `namespace` does not have, or None.
    """

    namespace: str
    context: str
    beneath: str | None = None

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces that answer, the first one first."""
        return (self.namespace,) if self.beneath is None else (self.namespace, self.beneath)


class ReadThrough:
    """Rules that name the namespace beneath another one; there is none beneath that again."""

    def __init__(self, rules: Mapping[str, str]) -> None:
        """Take the namespaces beneath others by the pattern of the others' names.

        Raises:
            SettingsError: A rule is malformed, or a namespace beneath others reads through as well.
        """
        self._rules = dict(rules)
        for pattern, target in rules.items():
            if not (re.fullmatch(NAMESPACE_PATTERN, pattern) and re.fullmatch(NAMESPACE, target)):
                raise SettingsError(
                    f"DEJAVU_SERVER_READ_THROUGH: {pattern}={target} is no rule such as pr-*=main"
                )
            if self.beneath(target) is not None:
                raise SettingsError(
                    f"DEJAVU_SERVER_READ_THROUGH: {pattern} reads through to {target}, which reads "
                    f"through to {self.beneath(target)}: name the last one"
                )

    @classmethod
    def parse(cls, text: str) -> ReadThrough:
        """Parse `PATTERN=NAMESPACE`, separated by commas.

        Raises:
            SettingsError: As in the constructor, or a pattern is there twice.
        """
        pairs = [rule.strip().partition("=") for rule in text.split(",") if rule.strip()]
        rules = {pattern: target for pattern, _, target in pairs}
        if len(rules) < len(pairs):
            raise SettingsError("DEJAVU_SERVER_READ_THROUGH names a pattern twice")
        return cls(rules)

    def beneath(self, namespace: str) -> str | None:
        """Return the namespace beneath another one, or None."""
        pattern = most_specific(self._rules, namespace)
        target = None if pattern is None else self._rules[pattern]
        return None if target == namespace else target

    def view(self, principal: Principal, namespace: str, context: str) -> RecordView:
        """Return what a principal reads of a context: through, if it may read both namespaces.

        Raises:
            AccessDeniedError: The principal may not read the namespace.
        """
        principal.require("read", namespace)
        beneath = self.beneath(namespace)
        if beneath is None or not principal.may("read", beneath):
            return RecordView(namespace, context)
        return RecordView(namespace, context, beneath)

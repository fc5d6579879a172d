"""Settings come from the environment once, and bad ones are named."""

from __future__ import annotations

import pytest

from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import Mode, Settings


def test_nothing_set_means_the_defaults() -> None:
    settings = Settings.from_environment({})
    assert (settings.mode, settings.wait, settings.namespace) == (Mode.TUNE, 0.25, "main")
    assert settings.default_url.startswith("file:///")


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_environment({"DEJAVU_CACHE_MODE": ""}).mode is Mode.TUNE


def test_values_are_read() -> None:
    settings = Settings.from_environment(
        {"DEJAVU_CACHE_MODE": " Strict ", "DEJAVU_CACHE_FAMILY": "1", "HOME": "/x"}
    )
    assert (settings.mode, settings.family) == (Mode.STRICT, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODE", "sometimes"),
        ("WAIT", "soon"),
        ("WAIT", "-1"),
        ("WAIT", "nan"),
        ("NAMESPACE", "../main"),
    ],
)
def test_a_bad_value_is_named_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"DEJAVU_CACHE_{name}='{value}'"):
        Settings.from_environment({f"DEJAVU_CACHE_{name}": value})


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Settings.from_environment({"DEJAVU_CACHE_TOKEN": "secret"}))

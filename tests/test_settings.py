"""Settings come from the environment once, and bad ones are named."""

from __future__ import annotations

import re

import pytest

from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import Mode, Settings, current_settings, unknown_variables


def test_nothing_set_means_the_defaults() -> None:
    settings = Settings.from_environment({})
    assert (settings.mode, settings.wait, settings.namespace) == (Mode.TUNE, 0.25, "main")
    assert settings.default_url.startswith("file:///")


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_environment({"DEJAVU_CACHE_MODE": ""}).mode is Mode.TUNE


def test_values_are_read() -> None:
    settings = Settings.from_environment(
        {"DEJAVU_CACHE_MODE": "strict", "DEJAVU_CACHE_SHIPPED": "0", "HOME": "/x"}
    )
    assert (settings.mode, settings.shipped) == (Mode.STRICT, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODE", "sometimes"),
        ("WAIT", "soon"),
        ("WAIT", "-1"),
        ("WAIT", "nan"),
        ("NAMESPACE", "../main"),
        ("CONSENSUS", "rank"),
    ],
)
def test_a_bad_value_is_named_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"DEJAVU_CACHE_{name}='{value}'"):
        Settings.from_environment({f"DEJAVU_CACHE_{name}": value})


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Settings.from_environment({"DEJAVU_CACHE_TOKEN": "secret"}))


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("MODE=reus", "did you mean 'reuse'?"),
        ("LOG=loud", "choose from debug, info, warning, error"),
        ("NAMESPACE=my team", "up to 64 letters, digits"),
    ],
)
def test_a_bad_value_comes_with_what_to_write(variable: str, remedy: str) -> None:
    name, _, value = variable.partition("=")
    with pytest.raises(SettingsError, match=re.escape(remedy)):
        Settings.from_environment({f"DEJAVU_CACHE_{name}": value})


def test_a_variable_that_is_no_setting_is_said_once_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("TUNE_WAI", "SERVICE_HOST", "PORT_80_TCP"):  # Kubernetes sets the last two
        monkeypatch.setenv(f"DEJAVU_CACHE_{name}", "1")
    for _ in range(2):
        current_settings.cache_clear()
        current_settings()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("DEJAVU_CACHE_TUNE_WAI is set, and no such setting exists")
    assert said.endswith("did you mean 'DEJAVU_CACHE_TUNE_WAIT'?")


def test_a_name_that_is_near_to_none_comes_with_all_of_them() -> None:
    (said,) = unknown_variables({"DEJAVU_CACHE_XYZZY": "1", "PATH": "/"})
    assert "choose from DEJAVU_CACHE_URL, DEJAVU_CACHE_MODE" in said

"""Settings and the policy file are read once, bad ones are named, and no program is stopped."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.addition import CONFIGS, add_one
from support.command_line import run_cli
from support.kernels import launch

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.errors import SettingsError
from dejavu_cache.policy import Policy, current_policy
from dejavu_cache.settings import Mode, Settings, current_settings


def test_values_are_read_and_what_is_unset_or_empty_has_its_default() -> None:
    defaults = Settings.from_environment({})
    assert (defaults.mode, defaults.wait, defaults.namespace) == (Mode.TUNE, 0.25, "main")
    assert defaults.default_url.startswith("file:///")
    variables = {"MODE": "strict", "SHIPPED": "0", "CONSENSUS": "", "TOKEN": "secret"}
    settings = Settings.from_environment(
        {"HOME": "/x", **{f"DEJAVU_CACHE_{name}": text for name, text in variables.items()}}
    )
    assert (settings.mode, settings.shipped) == (Mode.STRICT, False)
    assert settings.consensus == defaults.consensus
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("MODE", "sometimes", "choose from tune, reuse, strict, off"),
        ("MODE", "reus", "did you mean 'reuse'?"),
        ("LOG", "loud", "choose from debug, info, warning, error"),
        ("WAIT", "soon", "valid number"),
        ("WAIT", "-1", "greater than or equal to 0"),
        ("WAIT", "nan", "finite number"),
        ("NAMESPACE", "my team", "up to 64 letters, digits"),
        ("NAMESPACE", "../main", "up to 64 letters, digits"),
        ("CONSENSUS", "rank", "did you mean 'ranks'?"),
    ],
)
def test_a_bad_value_is_named_with_its_variable_and_what_to_write(
    name: str, value: str, remedy: str
) -> None:
    said = re.escape(f"DEJAVU_CACHE_{name}={value!r}") + ".*" + re.escape(remedy)
    with pytest.raises(SettingsError, match=said):
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


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "dejavu.toml"
    monkeypatch.setenv("DEJAVU_CACHE_POLICY", str(path))
    current_policy.cache_clear()
    yield path
    current_policy.cache_clear()


def make(**options: Any) -> Any:
    return cached_autotune(**{"configs": CONFIGS, "key": ["n"], **options})(add_one)


OVER: dict[str, Any] = {"mode": "reuse", "buckets": {"n": Pow2(max=16)}, "default": CONFIGS[1]}
"""Options of a decorator that a policy has, too."""


@pytest.mark.parametrize(
    ("mode", "options", "default", "n"),
    [("reuse", {}, CONFIGS[2], 64), ("strict", OVER, CONFIGS[1], 16)],
    ids=["the policy", "the decorator"],
)
def test_a_kernel_gets_what_its_pattern_says_and_the_decorator_counts_over_it(
    policy: Path, mode: str, options: dict[str, Any], default: Any, n: int
) -> None:
    policy.write_text(
        '[[kernel]]\nmatch = "*"\nmode = "strict"\n[[kernel]]\nmatch = "support.addition.*"\n'
        f'mode = "{mode}"\nbuckets = {{ n = "pow2" }}\ndefault.BLOCK = 64\ntune_seconds = 3\n'
    )
    kernel = make(**options)
    launch(kernel, 100)
    assert kernel.best_config is default
    asked = kernel.request(*[None] * 2, 100)
    assert (asked.scenario.args, asked.budget.seconds) == ({"n": n}, 3.0)


def test_buckets_of_every_kind_can_be_written(policy: Path) -> None:
    policy.write_text(
        '[[kernel]]\nmatch = "*"\nbuckets = { a = "exact", b = { kind = "pow2", max = 64 }, '
        'c = { kind = "edges", edges = [1, 8] }, d = { kind = "multiple", n = 16 } }\n'
    )
    read = Policy.read(policy)
    assert not read.problems
    assert [read.rules[0].buckets[name](100) for name in "abcd"] == [100, 64, 8, 96]


def test_what_is_wrong_is_left_out_and_said(policy: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy.write_text(
        '[[kernel]]\nmatch = "*"\nmode = "reuse"\n'
        '[[kernel]]\nmatch = "*"\nbucket = 1\n'
        '[[kernel]]\nmatch = "*"\nmode = "sometimes"\n'
        '[[kernel]]\nmatch = "*"\nmode = "reus"\n'
        '[[kernel]]\nmatch = "*"\nbuckets = { n = 16 }\n'
    )
    kernel = make()
    launch(kernel, 100)
    assert kernel.best_config is CONFIGS[0], "the first rule applies, the others are left out"
    for said in (
        "kernel 2: bucket: Extra inputs are not permitted; the rule is left out",
        "mode: choose from tune, reuse, strict, off; the rule is left out",
        "mode: did you mean 'reuse'?; the rule is left out",
        "buckets.n: 16 is no bucket, such as",
    ):
        assert said in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "no policy applies") for text in ("not toml", "\udcff", "kernels = 1")),
        (
            '[[kernel]]\nmatch = "*"\nbuckets = { m = "pow2" }',
            "a bucket for 'm', which is not in key",
        ),
        (
            '[[kernel]]\nmatch = "*"\ndefault = { BLOCK = 17 }',
            "no declared config is the policy's default {'BLOCK': 17}",
        ),
    ],
)
def test_what_cannot_be_read_or_does_not_fit_a_kernel_has_no_effect_and_is_said(
    policy: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy.write_bytes(text.encode(errors="surrogateescape"))
    launch(make(), 100)
    assert said in caplog.text


def test_doctor_lists_what_is_wrong(policy: Path) -> None:
    policy.write_text('[[kernel]]\nmatch = "a.*"\nmod = 1\n[[kernel]]\nmatch = "fla.*"\n')
    seen = run_cli("doctor", DEJAVU_CACHE_POLICY=str(policy))
    assert seen.returncode == 1
    assert "kernel 1: mod: Extra inputs are not permitted" in seen.stdout
    assert f"policy {policy}: 1 rule\n" in seen.stdout


def test_without_a_file_there_is_no_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    current_policy.cache_clear()
    assert current_policy().rules == ()
    (tmp_path / "dejavu.toml").write_text('[[kernel]]\nmatch = "*"\nmode = "off"\n')
    current_policy.cache_clear()
    assert [rule.match for rule in current_policy().rules] == ["*"]
    current_policy.cache_clear()

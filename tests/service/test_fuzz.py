"""Thousands of made-up requests against the OpenAPI of a running server.

The suite runs a few; for many:  FUZZ_EXAMPLES=300 python -m pytest tests/service/test_fuzz.py
"""

import json
import os
import re
import sys
from pathlib import Path

import httpx
from support.processes import PROGRAMS, run_command
from support.service import context, make_token, post, running_server, scenario

EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "4")
HOOKS = PROGRAMS / "schemathesis_hooks.py"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,negative_data_rejection"
)


def test_no_made_up_request_breaks_the_server_or_its_schema(
    postgres_url: str, tmp_path: Path
) -> None:
    token = make_token(postgres_url, "admin")
    there = {"namespace": "main", "context": context().digest, "scenario": scenario().digest}
    with running_server(postgres_url, tmp_path / "log") as server:
        with httpx.Client(base_url=server.base) as client:
            post(client, headers={"Authorization": f"Bearer {token}"})
        (tmp_path / "schemathesis.toml").write_text(
            f'[auth.openapi.token]\nbearer = "{token}"\n'
            "[checks.negative_data_rejection]\n"
            'expected-statuses = ["4xx", "5xx"]\n'
        )
        # A stream of lines is no body that can be made from a schema; and if it can, schemathesis
        # revokes its own token and is shut out of the rest.
        options = (
            f"--checks {CHECKS} --max-examples {EXAMPLES} --phases examples,coverage,fuzzing"
            " --exclude-path-regex (/import|/tokens/.*)$ --generation-deterministic"
            " --request-timeout 40"
        )
        environ = {"PYTHONWARNINGS": "ignore", "SCHEMATHESIS_HOOKS": str(HOOKS)}
        done = run_command(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.base}/v1/openapi.json"),
            *options.split(),
            check=False,
            timeout=3600,
            cwd=tmp_path,
            env={**os.environ, **environ, "FUZZ_THERE": json.dumps(there)},
        )
        sys.stdout.write(done.stdout)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        log = (tmp_path / "log").read_text()
    assert "unforeseen" not in log, log[-4000:]
    assert "Authentication failed" not in done.stdout, done.stdout[-3000:]
    cases = re.search(r"(\d+) generated", done.stdout)
    assert cases, done.stdout[-3000:]
    assert int(cases[1]) > 200

"""An issuer of identity tokens, such as GitHub is for its jobs."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE = "https://tune.example.com"
SUBJECT = "repo:acme/kernels:pull_request"


class Issuer:
    """An issuer with keys of its own, which it publishes over HTTP as GitHub does."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.fetches = 0
        self.broken = False
        self.answer: Callable[[Callable[[bytes], Any]], None] | None = None
        """Writes the answer to a question for keys in its own way."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += self.path == "/keys"
                if issuer.answer is not None and self.path == "/keys":
                    with suppress(OSError):
                        self.send_response(200)
                        self.end_headers()
                        issuer.answer(self.wfile.write)
                    return
                text = json.dumps({"keys": [issuer.public(name) for name in issuer.keys]})
                self.send_response(500 if issuer.broken else 200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def make_key(self, name: str) -> None:
        self.keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def public(self, name: str) -> dict[str, Any]:
        described = jwt.algorithms.RSAAlgorithm.to_jwk(self.keys[name].public_key(), as_dict=True)
        return {**described, "kid": name, "use": "sig", "alg": "RS256"}

    def token(self, key: str = "first", header: Any = None, **claims: Any) -> str:
        content = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": SUBJECT,
            "jti": secrets.token_hex(8),
            "iat": int(time.time()),
            "exp": int(time.time()) + 300,
            "repository": "acme/kernels",
            "ref": "refs/pull/7/merge",
            **claims,
        }
        content = {name: value for name, value in content.items() if value is not None}
        headers = {"kid": key, **(header or {})}
        signed: str = jwt.encode(content, self.keys[key], algorithm="RS256", headers=headers)
        return signed


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """Run an issuer with one key."""
    opened = Issuer()
    opened.make_key("first")
    try:
        yield opened
    finally:
        opened.server.shutdown()
        opened.server.server_close()


def write_rules(path: Path, issuer: Issuer, rules: str) -> Path:
    """Write the file of a server that exchanges an issuer's tokens by some rules."""
    path.write_text(f"""
[[issuers]]
issuer = "{issuer.url}"
audience = "{AUDIENCE}"
jwks = "{issuer.url}/keys"

{rules}
""")
    return path

"""A proxy that passes requests on and loses one answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import httpx

__all__ = ["lossy_proxy"]


@contextmanager
def lossy_proxy(server: str, method: str, path: str) -> Iterator[str]:
    """Yield the URL of a proxy before a server.

    The first answer to a request of this method, whose path contains this one, gets lost with its
    connection, as where a load balancer loses patience or a server is replaced.
    """
    numbers = count(1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept = {name: value for name, value in self.headers.items() if name != "Host"}
            answer = httpx.request(
                self.command, server + self.path, headers=kept, content=content, timeout=60
            )
            if self.command == method and path in self.path and next(numbers) == 1:
                self.close_connection = True
                return
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PUT = do_DELETE = _pass_on  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        proxy.server_close()

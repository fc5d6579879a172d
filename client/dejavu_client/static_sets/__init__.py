"""Signed record sets in files behind any web server, bucket or release page.

    index.signed    an Ed25519 signature, a line end, and the index that it signs (JSON)
    SHA256.json     one file per context, a line of an export, named by its digest

The URL names the publisher's public key, so that nobody is trusted by default: whoever serves the
files can withhold them, and nothing else. The index has each file's digest and size, and a serial
that grows with each publication: a reader never goes back to an earlier one.
"""

from .signed_index import INDEX, make_key, publish
from .store import StaticStore, open_static, static_url

__all__ = ["INDEX", "StaticStore", "make_key", "open_static", "publish", "static_url"]

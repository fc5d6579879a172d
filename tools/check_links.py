"""Check the links of the Markdown files into this repository; `make lint` runs this.

Each must lead to a file, and to a heading of it where it names one. Links to the repository's own
address are checked as files of this checkout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "*.md",
    "docs/**/*.md",
    "benchmarks/**/*.md",
    "records/*.md",
    ".github/**/*.md",
    "examples/**/*.md",
)

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
OWN_ADDRESS = re.compile(
    r"https://(github\.com/dejavu-cache/dejavu-cache/blob"
    r"|raw\.githubusercontent\.com/dejavu-cache/dejavu-cache)/main/"
)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub gives to a document's headings."""
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> Iterator[str]:
    """Yield the targets of a document's links into the repository that do not exist."""
    for target in LINK.findall(CODE.sub("", document.read_text(encoding="utf-8"))):
        own = OWN_ADDRESS.match(target)
        if re.match(r"[a-z]+:", target) and not own:
            continue
        path, _, anchor = target[own.end() if own else 0 :].partition("#")
        file = (ROOT if own else document.parent) / path if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


def main() -> int:
    """Print every broken link; return the exit status."""
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for pattern in DOCUMENTS
        for document in sorted(ROOT.glob(pattern))
        for target in broken_links(document)
    ]
    print("\n".join(broken) or "every link into the repository leads somewhere")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

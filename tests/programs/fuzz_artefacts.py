"""Change artefacts of every kind at random for some minutes, and read each case by every reader.

Arguments: MINUTES, and maybe the number to begin with. What a reader raises, runs or writes is
printed, and the case that caused it is written to `tests/security/seeds`, where the suite finds it.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

from support.hostile_artefacts import (
    KINDS,
    Change,
    HostileDataReader,
    change,
    write_honest_artefacts,
)

SEEDS = Path(__file__).parents[1] / "security" / "seeds"
PACKED = 3
"""One case in so many changes only what is inside an answer."""


def draw_changes(number: int, names: list[str]) -> list[Change]:
    """Return the changes of a case, which follow from its number."""
    draw = random.Random(number)
    count = draw.randint(1, 12)
    if number % PACKED:
        return [
            (draw.randint(0, 200), draw.choice(KINDS), draw.randint(0, 5000), draw.randint(0, 255))
            for _ in range(count)
        ]
    packed = names.index("raw-answer")
    kinds = ["inside", "inside", "inside", "bytes"]
    return [
        (packed, draw.choice(kinds), draw.randint(0, 50_000), draw.randint(0, 255))
        for _ in range(count)
    ]


def main() -> int:
    ends = time.monotonic() + float(sys.argv[1]) * 60
    number = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    first, problems = number, 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        honest = Path(name) / "honest"
        honest.mkdir()
        write_honest_artefacts(honest)
        files = sorted(path for path in honest.rglob("*") if path.is_file())
        names = [path.name for path in files]
        reader = HostileDataReader(honest, Path(name))
        while time.monotonic() < ends:
            changes = draw_changes(number, names)
            case = reader.new_case()
            change(case, changes)
            try:
                seen = reader.read(case)
            except (TimeoutError, ValueError) as error:  # it hangs, or died
                seen = [repr(error)]
                reader = HostileDataReader(honest, Path(name) / f"after{number}")
            if seen:
                problems += 1
                (SEEDS / f"case-{number}.json").write_text(json.dumps(changes) + "\n")
                sys.stdout.write(f"{number}: {seen}\n")
                sys.stdout.flush()
            number += 1
        reader.close()
    sys.stdout.write(f"{number - first} cases from {first} on, {problems} with problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

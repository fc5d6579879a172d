"""Entry point of the command `dejavu-cache`, also as `python -m dejavu_client`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; Ctrl-C ends it without a traceback before and after it runs, too."""
    try:
        from .cli.main import main as run_program

        run_program()
    except KeyboardInterrupt:
        sys.exit(130)  # ExitCode.INTERRUPTED, which may not be imported yet


if __name__ == "__main__":
    main()

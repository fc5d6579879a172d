"""Entry point of the command `dejavu-cache`, also as `python -m dejavu_client`."""

import signal
import sys


def main() -> None:
    """Run the command; Ctrl-C ends it without a traceback before and after it runs, too."""
    try:
        try:
            from .cli.main import main as run_program

            run_program()
        finally:  # Ctrl-C while the interpreter ends would replace the exit code
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(130)  # ExitCode.INTERRUPTED, which may not be imported yet


if __name__ == "__main__":
    main()

"""Entry point of `python -m dejavu_client`."""

from .cli.main import main

main()

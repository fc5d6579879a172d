"""`python -m dejavu_client`: the command line."""

from .cli.main import main

main()

"""`python -m dejavu_client`: the command line."""

from .cli import main

main()

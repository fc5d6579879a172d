"""Entry point of the server's commands without the client: `python -m dejavu_service serve`."""

import typer

from .cli import register

app = typer.Typer(no_args_is_help=True)
register(app)

if __name__ == "__main__":
    app(prog_name="dejavu-cache")

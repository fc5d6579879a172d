"""The application to which the commands are added: their groups in the help, and examples."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import dejavu_cache

from .output import say

GROUPS: dict[str, tuple[str, ...]] = {
    "Look": ("ls", "show", "explain", "diff", "watch", "log", "pages", "doctor"),
    "Tune": ("run", "sweep", "heuristics"),
    "Choose and clean up": ("pin", "quarantine", "rename", "gc"),
    "Move records": ("export", "import", "sync", "promote", "use"),
    "Ship": ("prewarm", "verify"),
    "Server": ("serve", "db", "token"),
}
"""Commands by the title under which the help lists them."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "ls": ("ls", "ls '*attention*' --device H200"),
    "show": ("show add --where 'M>=64' --device H200", "show --misses --where 'num_seqs>=64'"),
    "diff": (
        "diff /var/cache/dejavu https://tune.example.com",
        "diff --device H100 --device H200 --kernel add",
        "diff /runs/monday /runs/tuesday",
    ),
    "explain": ("explain add --where M=64 --device H200",),
    "watch": ("watch", "watch '*attention*' --store https://tune.example.com"),
    "log": ("log --actor anna --since 2026-01-31T12:00:00Z",),
    "pages": ("pages --store /var/cache/dejavu", "pages --out overview.html"),
    "doctor": ("doctor", "doctor --store prewarmed:///opt/dejavu"),
    "run": ("run --mode reuse -- python serve.py --port 8000",),
    "sweep": ("sweep shop.suites:matmul --budget 20m", "sweep shop.suites --from-misses"),
    "heuristics": ("heuristics add", "heuristics add --device H200 --as python"),
    "pin": ("pin add --config BLOCK=64 --config num_warps=4 --where M=64", "pin add --remove"),
    "quarantine add": ("quarantine add --token ci-runner-7",),
    "quarantine list": ("quarantine list", "quarantine list --writers"),
    "quarantine undo": ("quarantine undo 8efe76678f36e7be",),
    "rename": ("rename 'pkg.old.*' 'pkg.new.*' --yes",),
    "gc": ("gc --days 90 --yes", "gc add --all"),
    "export": ("export records.jsonl --kernel add", "export /srv/set --sign key.pem --new-key"),
    "import": ("import records.jsonl", "import /node1 /node2 --store /shared"),
    "sync": ("sync", "sync --push-only --store /node1,https://tune.example.com"),
    "promote": ("promote --to main --store 'https://tune.corp?namespace=pr-7'",),
    "use": ("use https://host/set --key KEY --dry-run",),
    "prewarm": (
        "prewarm shop.kernels --device H200 --out /opt/dejavu",
        "prewarm --engine vllm --option model=. --device H100 --out /opt",
    ),
    "verify": ("verify --expect-hits -- python serve.py",),
    "serve": ("serve --database postgresql://db/dejavu --host 0.0.0.0",),
    "db upgrade": ("db upgrade --database postgresql://db/dejavu",),
    "db prune": ("db prune --unused-days 90",),
    "token create": ("token create --name ci --role write --namespace pr-7",),
    "token list": ("token list",),
    "token revoke": ("token revoke 1f3c",),
}
"""Command lines by command, without the program's name."""


class GroupedCommands(TyperGroup):
    """Application whose help lists commands by subject, each with its first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group of commands; those of other packages come last."""
        listed = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in self.commands if name not in listed)
        for title, names in {**GROUPS, "Other commands": others}.items():
            rows = [
                (name, _first_sentence(self.commands[name].help or ""))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=12)


class FullCommand(TyperCommand):
    """Command that refuses an empty text: it would mean all kernels, or another store.

    A shell makes one of a variable that is not set, as in `gc "$KERNEL" --yes`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; a program's own arguments may be empty."""
        rest = super().parse_args(ctx, args)
        for parameter in list[Any](self.params):
            value, source = ctx.params.get(parameter.name), ctx.get_parameter_source(parameter.name)
            texts = value if isinstance(value, (list, tuple)) else (value,)
            if "" in texts and source.name == "COMMANDLINE" and parameter.name != "command":
                raise typer.BadParameter("it is empty", ctx=ctx, param=parameter)
        return rest


app = typer.Typer(
    name="dejavu-cache",
    cls=GroupedCommands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"dejavu-cache {dejavu_cache.__version__}")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Tuning results of Triton kernels: look at them, move them, keep them in order."""


def add_examples(application: typer.Typer, prefix: str = "") -> None:
    """Have each command refuse empty texts, and show its examples at the end of its help."""
    for command in application.registered_commands:
        command.cls = FullCommand
        function = command.callback.__name__ if command.callback else ""
        examples = EXAMPLES.get(prefix + (command.name or function.replace("_", "-")), ())
        if examples:
            lines = "\n".join(f"  dejavu-cache {example}" for example in examples)
            command.epilog = f"\b\nExamples:\n{lines}"
    for group in application.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, f"{group.name} ")


def _first_sentence(text: str) -> str:
    """Return a help text's first sentence without its full stop."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".")

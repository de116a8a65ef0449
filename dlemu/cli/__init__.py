"""The command line: the only place that parses arguments, prints or exits. Each command has a module, imported on use.

Commands for kinds of jobs (train, checkpoint, kvcache, plug-ins) are generated from the kinds' declarations
(`job_command`). May import everything except the Python API, which does the same for programs.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import traceback
from typing import cast

import click

from datagen.errors import DlemuError, UserError, host_failure
from datagen.registry import import_by_name, installed, nearest
from datagen.withheld import scrubbed
from dlemu import __version__
from dlemu.config.published import check_letters, given_options
from dlemu.results.kinds import kinds

# On import, NumPy's linear algebra, which nothing here calls, would start a spinning thread on each core: half of the
# import's CPU time, in each rank.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_YOUNG_OBJECTS = 50_000
"""First threshold of the garbage collector; Python's default is 700. Importing frameworks creates hundreds of thousands
of long-lived objects, and collecting among them took a sixth of the import's time."""

_FIRST = ("demo", "train", "size", "predict", "checkpoint", "record", "compare", "report")
_MORE = ("datagen", "probe", "sweep", "together", "watch", "workloads", "doctor", "schema")
"""Order in which commands are listed; those of plug-ins follow alphabetically."""
_PLUGINS = "dlemu.commands"
"""Group of entry points that name a click command."""
_WITHOUT_KIND = {
    "demo": "Try it: a small dataset, 18 emulated H100s, a verdict.",
    "datagen": "Make a workload's dataset, or verify one.",
    "watch": "Show the progress of a run: AU, MB/s, queue depth, time left.",
    "report": "Make a page with figures from results.",
    "schema": "Print the JSON Schema of a command's result.",
    "workloads": "List the workloads and what each accelerator demands of the storage.",
    "doctor": "Check this host before a run.",
}
"""Commands that do not produce a kind of result, with their help."""


def commands() -> dict[str, str]:
    """Return command -> one line of help, in the order in which they are listed."""
    known = {kind.command: kind.help for kind in kinds() if kind.help} | _WITHOUT_KIND
    added = {name: entry for name, entry in installed(_PLUGINS).items() if name not in known}
    known |= {name: entry.load().get_short_help_str(limit=200) for name, entry in added.items()}
    order = (*_FIRST, *_MORE, *sorted(known.keys() - {*_FIRST, *_MORE}))
    return {name: known[name] for name in order if name in known}


class _Commands(click.Group):
    """A group that lists commands with their help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (added := installed(_PLUGINS).get(cmd_name)) is not None:
            return cast(click.Command, added.load())
        kind = next((kind for kind in kinds() if kind.command == cmd_name and kind.is_job), None)
        if kind is not None:
            return cast(click.Command, import_by_name("dlemu.cli.job_command", "job_command")(kind))
        if cmd_name not in (*_FIRST, *_MORE) or importlib.util.find_spec(f"dlemu.cli.{cmd_name}") is None:
            return None
        return cast(click.Command, import_by_name(f"dlemu.cli.{cmd_name}", "command"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Make `dlemu help [COMMAND]` the same as `dlemu [COMMAND] --help`; suggest a command for an unknown name."""
        if args == ["help"]:
            click.echo(ctx.get_help())
            ctx.exit()
        if args[0] == "help":
            args = [args[1], "--help"]
        name = args[0]
        if not name.startswith("-") and name not in _FIRST + _MORE and name not in (known := commands()):
            hint = nearest(name.lower(), known)
            raise click.UsageError(f"there is no command {name!r}: {hint}known: {', '.join(known)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands that most users need first."""
        known = commands()
        for title, names in (("Commands", _FIRST), ("More", known.keys() - {*_FIRST})):
            with formatter.section(title):
                formatter.write_dl([(name, known[name]) for name in known if name in names])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""Settings are hydra overrides: `dlemu train workload=unet3d accelerator=h100 ranks=18 scale=laptop`.

    \b
    To complete commands and options in this shell (in its start-up file: in every shell):
      bash 4.4  eval "$(_DLEMU_COMPLETE=bash_source dlemu)"
      zsh       eval "$(_DLEMU_COMPLETE=zsh_source dlemu)"
      fish      _DLEMU_COMPLETE=fish_source dlemu | source
    """,
)
@click.version_option(__version__, prog_name="dlemu")
def cli() -> None:
    """How many accelerators can this storage keep busy?

    dlemu builds training datasets and streams them through real data loaders; emulated accelerators sleep for as long
    as real ones would compute on each batch.
    """


def main() -> None:
    """Run the command line. Exit status: docs/results.md."""
    guarded(cli, "dlemu")


def dlio_main() -> None:
    """Run the command line of `dlio_benchmark`."""
    guarded(import_by_name("dlemu.cli.dlio_benchmark", "command"), "dlio_benchmark")


def guarded(command: click.Command, name: str) -> None:
    """Run a command line; on failure, print a message and end this process with an exit status."""
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    try:
        _see_current_folder()
        check_letters(sys.argv[1:])
        command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and (setting := _intended_setting(error)):
            complain(setting)
        else:
            error.show()
        sys.exit(2)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__context__, EOFError):
            complain("no answer (end of input): --yes answers yes to what is made; other answers are options (--help)")
            sys.exit(2)
        complain("interrupted by Ctrl-C (SIGINT)")
        sys.exit(130)
    except DlemuError as error:
        complain_of(error)
        sys.exit(error.exit_status)
    except SystemExit:
        raise
    except BaseException as error:
        if failed := host_failure(error):
            complain(failed)
            sys.exit(UserError.exit_status)
        status: int | None = getattr(error, "exit_status", None)  # of dlemu.ranks's Interrupted, not imported here
        complain(traceback.format_exc().rstrip() if status is None else str(error))
        sys.exit(status or DlemuError.exit_status)  # Python's own 1 would mean that a run did not pass


def _intended_setting(error: click.NoSuchOption) -> str:
    """Return what to say of a setting that was typed as an option, of another program too.

    Empty if an option was intended, or if the command takes no settings.
    """
    from dlemu.config.sections import SYNONYMS
    from dlemu.config.translate import is_known

    if not error.ctx or not any(parameter.name == "overrides" for parameter in error.ctx.command.params):
        return ""
    key = error.option_name.lstrip("-").replace("-", "_")
    meant = SYNONYMS.get(key, key)
    if " " in meant:
        return f"there is no option {error.option_name}: did you mean {meant}?"
    is_setting = key in SYNONYMS or "." in key or is_known(key)
    return f"settings are given as KEY=VALUE, without dashes: {meant}=..." if is_setting else ""


def _see_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder was removed: change to one that exists (`cd`) and start again") from error


def complain_of(error: DlemuError) -> None:
    """Print an error on stderr, after its notes, such as the traceback of an unexpected error in a rank."""
    for note in getattr(error, "__notes__", ()):
        complain(note)
    complain(str(error))


def complain(message: str) -> None:
    """Print a message on stderr, without credentials from the command line and control characters."""
    from dlemu.results.wording import VISIBLE

    message_shown = scrubbed(message, given_options(sys.argv)).translate(VISIBLE)
    print(f"dlemu: {message_shown}", file=sys.stderr, flush=True)

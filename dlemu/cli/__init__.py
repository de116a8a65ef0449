"""The command line: the only place that parses, prints or exits. One module a command, imported when it is called.

Commands of jobs are made of what their kinds say (`job_command`). May import everything but the Python API, which does
the same for programs.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
import traceback
from typing import cast

import click

from datagen.errors import DlemuError, SpaceError, UserError, shortage
from datagen.registry import nearest
from datagen.withheld import scrubbed
from dlemu import __version__
from dlemu.config.published import check_letters, given_options
from dlemu.results.kinds import installed_kinds, kinds

# NumPy's linear algebra, which nothing here calls, would start a thread on each core as it is imported, and these spin:
# half of the import's CPU, in each rank.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_YOUNG_OBJECTS = 50_000
"""Objects that are made before Python looks for garbage among them. By default 700: frameworks make hundreds of
thousands as they are imported and drop few, and looking through them again and again took a sixth of that time."""

_ORDER = (
    *(
        "demo",
        "train",
        "checkpoint",
        "datagen",
        "size",
        "probe",
        "predict",
        "sweep",
        "together",
        "record",
        "pack",
        "reproduce",
        "compare",
    ),
    *("watch", "report", "schema", "workloads", "workload", "doctor", "mlperf", "audit"),
)
"""In which commands are listed; those of other kinds of jobs follow."""
_OTHERS = {
    "demo": "Try it: a small dataset, 18 emulated H100s, a verdict.",
    "datagen": "Make a workload's dataset, or verify one.",
    "watch": "Show the progress of a run: AU, MB/s, queue depth, time left.",
    "report": "Make a page with figures from results.",
    "schema": "Print the JSON Schema of a command's result.",
    "workloads": "List the workloads and what each accelerator demands of the storage.",
    "workload": "Show what a workload demands of the storage; write one of your own.",
    "doctor": "Check this host before a run.",
    "mlperf": "Rehearse an MLPerf Storage submission, check one, size its dataset.",
}
"""Commands that leave no result of a kind."""


def commands() -> dict[str, str]:
    """Return each command with a line of help: those of the kinds of results, and the others."""
    known = {kind.command: kind.help for kind in (*kinds(), *installed_kinds()) if kind.help} | _OTHERS
    return {name: known[name] for name in (*_ORDER, *sorted(known.keys() - set(_ORDER))) if name in known}


class _Commands(click.Group):
    """Knows each command's name and one line of help without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = kinds() if cmd_name in _ORDER else (*kinds(), *installed_kinds())
        kind = next((kind for kind in known if kind.command == cmd_name and kind.job), None)
        if kind is not None:
            command: click.Command = importlib.import_module("dlemu.cli.job_command").job_command(kind)
            return command
        if cmd_name not in _ORDER or importlib.util.find_spec(f"dlemu.cli.{cmd_name}") is None:
            return None
        return cast(click.Command, importlib.import_module(f"dlemu.cli.{cmd_name}").command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """`dlemu help [COMMAND]` is `dlemu [COMMAND] --help`; a name that is none gets the one that was meant."""
        if args == ["help"]:
            click.echo(ctx.get_help())
            ctx.exit()
        if args[0] == "help":
            args = [args[1], "--help"]
        name = args[0]
        if name not in _ORDER and not name.startswith("-") and name not in (known := commands()):
            hint = nearest(name.lower(), known)
            raise click.UsageError(f"there is no command {name!r}: {hint}known: {', '.join(known)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(commands().items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""Settings are hydra overrides: `dlemu train workload=unet3d accelerator=h100 ranks=18 scale=laptop`.

    \b
    Completion in this shell; in its start-up file, for all:
      bash 4.4  eval "$(_DLEMU_COMPLETE=bash_source dlemu)"
      zsh       eval "$(_DLEMU_COMPLETE=zsh_source dlemu)"
      fish      _DLEMU_COMPLETE=fish_source dlemu | source
    """,
)
@click.version_option(__version__, prog_name="dlemu")
def cli() -> None:
    """How many accelerators can this storage keep busy?

    dlemu builds training datasets, streams them through real data loaders, and lets emulated accelerators sleep for
    each batch as long as real ones would compute.
    """


def main() -> None:
    """Run the command line. Exit status: docs/results.md."""
    guarded(cli, "dlemu")


def dlio_main() -> None:
    """Run the command line of `dlio_benchmark`."""
    guarded(importlib.import_module("dlemu.cli.dlio_benchmark").command, "dlio_benchmark")


def guarded(command: click.Command, name: str) -> None:
    """Run a command line, and end this process with a message and status when that fails."""
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    try:
        _see_current_folder()
        check_letters(sys.argv[1:])
        if f"_{name.upper()}_COMPLETE" in os.environ:
            importlib.import_module("dlemu.cli.completion").register()
        command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and (key := _meant_setting(error)):
            complain(f"settings are given as KEY=VALUE, without dashes: {key}=...")
        else:
            error.show()
        sys.exit(2)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted by Ctrl-C (SIGINT)")
        sys.exit(130)
    except DlemuError as error:
        complain_of(error)
        sys.exit(error.exit_status)
    except SystemExit:
        raise
    except BaseException as error:
        if short := shortage(error):
            complain(short)
            sys.exit(SpaceError.exit_status)
        status: int | None = getattr(error, "exit_status", None)  # of dlemu.comm's Interrupted, not imported for this
        complain(traceback.format_exc().rstrip() if status is None else str(error))
        sys.exit(status or DlemuError.exit_status)  # not Python's 1, which says that a run did not pass


def _meant_setting(error: click.NoSuchOption) -> str:
    """Return the key that was typed as if it were an option: one of the settings', or one that is near no option.

    Empty where it is an option that was meant, or where the command takes no settings.
    """
    takes_settings = error.ctx and any(parameter.name == "overrides" for parameter in error.ctx.command.params)
    if not takes_settings or not error.option_name.startswith("--"):
        return ""
    key = error.option_name.lstrip("-").replace("-", "_")
    if not error.possibilities:
        return key
    from dlemu.config.schema import Workload

    return key if key.partition(".")[0] in Workload.__dataclass_fields__ else ""


def _see_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder was removed: change to one that exists (`cd`) and start again") from error


def complain_of(error: DlemuError) -> None:
    """Say on stderr what went wrong; of what nobody foresaw in a rank, its traceback too."""
    for note in getattr(error, "__notes__", ()):
        complain(note)
    complain(str(error))


def complain(message: str) -> None:
    """Say on stderr what went wrong, without the credentials that the command line gave."""
    message_shown = scrubbed(message, given_options(sys.argv))
    print(f"dlemu: {message_shown}", file=sys.stderr, flush=True)

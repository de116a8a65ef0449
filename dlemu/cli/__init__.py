"""The roof: the only place that parses, prints or exits. One module a command, imported when it is called."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback

import click

from datagen.errors import DlemuError, SpaceError, UserError, shortage
from datagen.registry import nearest
from datagen.withheld import scrubbed
from dlemu import __version__
from dlemu.config.published import given_options

# NumPy's linear algebra, which nothing here calls, would start a thread on each core as it is imported, and these spin:
# half of the import's CPU, in each rank.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_YOUNG_OBJECTS = 50_000
"""Objects that are made before Python looks for garbage among them. By default 700: frameworks make hundreds of
thousands as they are imported and drop few, and looking through them again and again took a sixth of that time."""

COMMANDS = {
    "train": "Train with emulated accelerators and say how busy the storage kept them.",
    "checkpoint": "Write and read a model's checkpoints and say how fast the storage took and gave them.",
    "datagen": "Make a workload's dataset, or verify one.",
    "size": "Find the most accelerators that this storage keeps busy.",
    "probe": "Measure what a storage can do: MB/s, IOPS and latency by size and depth.",
    "predict": "Predict how many accelerators a storage keeps busy, without running them.",
    "sweep": "Run over several values: ranks, drives, readers, workloads.",
    "pack": "Pack images into few large files, and say what limits that.",
    "reproduce": "Make the figures of a vendor's document on your storage.",
    "compare": "Put two runs, sweeps or searches beside each other.",
    "report": "Make a page with figures from results.",
    "workloads": "List the workloads and what each accelerator asks of the storage.",
    "doctor": "Check this host before a run.",
    "mlperf": "Rehearse an MLPerf Storage submission, check one, size its dataset.",
    "audit": "Recompute the numbers of DLIO's and MLPerf Storage's result folders.",
}


class _Commands(click.Group):
    """Knows each command's name and one line of help without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"dlemu.cli.{cmd_name}").command
        return command

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
        if name not in COMMANDS and not name.startswith("-"):
            hint = nearest(name.lower(), COMMANDS)
            raise click.UsageError(f"there is no command {name!r}: {hint}known are {', '.join(COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Settings are hydra overrides: `dlemu train workload=unet3d accelerator=h100 ranks=18 scale=laptop`.",
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
        command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and error.option_name.startswith("--") and _takes_settings(error.ctx):
            key = error.option_name.lstrip("-").replace("-", "_")
            complain(f"settings are given as KEY=VALUE, without dashes: {key}=...")
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


def _takes_settings(ctx: click.Context | None) -> bool:
    return ctx is not None and any(parameter.name == "overrides" for parameter in ctx.command.params)


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
    said = scrubbed(message, given_options(sys.argv))
    print(f"dlemu: {said}", file=sys.stderr, flush=True)

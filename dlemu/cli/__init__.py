"""The command line: the only package that parses arguments, prints or exits. Each command's module is imported on use.

`job_command` generates the commands of kinds of jobs (train, checkpoint, kvcache, plug-ins) from their declarations.
This package must not import the Python API, its counterpart for programs.
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
from datagen.withheld import argv_options, check_encoding, redact_message
from dlemu import __version__
from dlemu.results.kinds import kinds

# NumPy's linear algebra, which dlemu does not use, would start a spinning thread on each core when NumPy is imported:
# that takes half of the import's CPU time, in each rank.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# First threshold of the garbage collector (Python's default: 700). Importing a framework creates hundreds of thousands
# of long-lived objects; collecting garbage among them took a sixth of the import's time.
_YOUNG_OBJECTS = 50_000

MAIN_COMMANDS = {  # the commands that most users need, with an example of each; `record` is listed only if installed
    "try": "dlemu try /mnt/nvme",
    "train": "dlemu train workload=unet3d ranks=18 scale=laptop --make",
    "size": "dlemu size workload=unet3d accelerator=h100 scale=laptop --make",
    "predict": "dlemu predict workload=unet3d --mb-per-second 7000",
    "checkpoint": "dlemu checkpoint workload=llama3_8b scale=laptop",
    "record": "dlemu record --out job.yaml -- python train.py",
    "compare": "dlemu compare results/unet3d/RUN-A results/unet3d/RUN-B",
    "report": "dlemu report results/unet3d/RUN",
}
# All commands in the order in which help lists them; those of plug-ins follow alphabetically.
_LISTED = (*MAIN_COMMANDS, "datagen", "probe", "sweep", "together", "watch", "workloads", "doctor", "schema")
_PLUGINS = "dlemu.commands"  # group of entry points for click commands
_SETTINGS = "KEY=VALUE sets what is run (DLIO's names, hydra's grammar); --FLAG sets what the command does with it."
_WITHOUT_KIND = {  # commands that do not produce a kind of result, with their help
    "try": "See in less than a minute how many accelerators a folder's storage feeds.",
    "datagen": "Make a workload's dataset, or verify one.",
    "watch": "Show the progress of a run: AU, MB/s, time left.",
    "report": "Make a page with figures from results.",
    "schema": "Print the JSON Schema of a command's result.",
    "workloads": "List the workloads and what each accelerator demands of the storage.",
    "doctor": "Check this host before a run.",
}


def commands() -> dict[str, str]:
    """Return command -> one line of help, in the order of the list."""
    helps = {kind.command: kind.help for kind in kinds() if kind.help} | _WITHOUT_KIND
    for name, entry in installed(_PLUGINS).items():
        if name not in helps:
            helps[name] = entry.load().get_short_help_str(limit=200)
    order = (*_LISTED, *sorted(helps.keys() - _LISTED))
    return {name: helps[name] for name in order if name in helps}


class _Commands(click.Group):
    """The group of all commands, which lists them without importing their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        plugin = installed(_PLUGINS).get(cmd_name)
        if plugin is not None:
            return cast(click.Command, plugin.load())
        for kind in kinds():
            if kind.command == cmd_name and kind.is_job:
                return cast(click.Command, import_by_name("dlemu.cli.job_command", "job_command")(kind))
        module = "dlemu.cli.try_" if cmd_name == "try" else f"dlemu.cli.{cmd_name}"
        if cmd_name not in _LISTED or importlib.util.find_spec(module) is None:
            return None
        return cast(click.Command, import_by_name(module, "command"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Treat `dlemu FOLDER` as `try FOLDER` and `help COMMAND` as `COMMAND --help`; suggest a command for a typo."""
        if args[0] == "help":
            ctx.obj = "all" if args[1:] == ["--all"] else ""
            if ctx.obj or not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [args[1], "--help"]
        name = args[0]
        if name.startswith("-") or name in _LISTED or name in commands():
            return super().resolve_command(ctx, args)
        if os.path.isdir(name):
            return super().resolve_command(ctx, ["try", *args])
        raise click.UsageError(f"there is no command {name!r}: {_advice_on_command(name)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands that most users need, each with an example; with `dlemu help --all` also the others."""
        known = commands()
        with formatter.section("Commands"):
            rows = []
            for name, example in MAIN_COMMANDS.items():
                if name in known:
                    rows += [(name, known[name]), ("", example)]
            formatter.write_dl(rows)
        if ctx.obj == "all":
            with formatter.section("More"):
                formatter.write_dl([(name, known[name]) for name in known if name not in MAIN_COMMANDS])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\n{_SETTINGS}\n")
        if ctx.obj != "all":
            formatter.write("more: dlemu help --all\n")


@click.group(
    cls=_Commands,
    options_metavar="",
    subcommand_metavar="COMMAND [KEY=VALUE]... [--FLAG]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="dlemu")
def cli() -> None:
    """How many accelerators can this storage keep busy?"""


def main(program: str = "dlemu") -> None:
    """Run the command line of `dlemu` or `dlio_benchmark`. Exit status: docs/results.md."""
    command = cli if program == "dlemu" else import_by_name("dlemu.cli.dlio_benchmark", "command")
    guarded(command, program)


def guarded(command: click.Command, name: str) -> None:
    """Run a command; on failure, print a message and exit with the status of the failure."""
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    try:
        _check_current_folder()
        check_encoding(sys.argv[1:])
        command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        if advice := _advice_on_option(error):
            complain(advice)
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
        status: int | None = getattr(error, "exit_status", None)  # of dlemu.ranks.Interrupted, not imported here
        complain(traceback.format_exc().rstrip() if status is None else str(error))
        sys.exit(status or DlemuError.exit_status)  # not Python's 1, which means that a run did not pass


def _meaning_of(key: str) -> str:
    """Return the setting that a key of any tool means, or a phrase on what to use instead; "" if it means nothing."""
    from dlemu.config.schema import SYNONYMS
    from dlemu.config.translate import is_known

    return SYNONYMS.get(key, key if is_known(key) else "")


def _advice_on_command(word: str) -> str:
    """Return advice on an unknown first word: a setting without its command, a missing folder, or a typo."""
    key, equals, value = word.lstrip("+").partition("=")
    meaning = _meaning_of(key)
    if " " in meaning:  # a phrase
        return f"did you mean {meaning}?"
    if equals or meaning:
        setting = f"{meaning or key}={value or '...'}"
        return f"{setting} is a setting, which follows a command, as in `dlemu train {setting}`"
    if os.sep in word:
        return "it is no folder, either: wanted one that exists, as in `dlemu /mnt/nvme`"
    known = commands()
    return f"{nearest(word.lower(), known)}known: {', '.join(known)}"


def _advice_on_option(error: click.ClickException) -> str:
    """Return advice on an unknown option that is a setting; empty for others, and if the command takes no settings."""
    if not isinstance(error, click.NoSuchOption) or not error.ctx:
        return ""
    if "overrides" not in [parameter.name for parameter in error.ctx.command.params]:
        return ""
    key = error.option_name.lstrip("-").replace("-", "_")
    meaning = _meaning_of(key)
    if " " in meaning:  # a phrase
        return f"there is no option {error.option_name}: did you mean {meaning}?"
    setting = meaning or (key if "." in key else "")
    return f"settings are given as KEY=VALUE, without dashes: {setting}=..." if setting else ""


def _check_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder was removed: change to one that exists (`cd`) and start again") from error


def complain_of(error: DlemuError) -> None:
    """Print an error's notes, such as the traceback of an unexpected error in a rank, and then the error on stderr."""
    for note in getattr(error, "__notes__", ()):
        complain(note)
    complain(str(error))


def complain(message: str) -> None:
    """Print a message on stderr, without the command line's credentials and with control characters escaped."""
    from dlemu.results.wording import VISIBLE

    public_message = redact_message(message, argv_options(sys.argv)).translate(VISIBLE)
    print(f"dlemu: {public_message}", file=sys.stderr, flush=True)

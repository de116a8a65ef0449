"""Entry points of the programs: `dlemu`, `dlio_benchmark`, `dlemu-mpirun`, `python -m dlemu`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run `dlemu`."""
    _import_command_line()
    from dlemu.cli import main
    from dlemu.cli.outlets import lasting_outlets

    with lasting_outlets():
        main()


def dlio_main() -> None:
    """Run `dlio_benchmark`."""
    _import_command_line()
    from dlemu.cli import dlio_main
    from dlemu.cli.outlets import lasting_outlets

    with lasting_outlets():
        dlio_main()


def mpirun_main() -> None:
    """Run `dlemu-mpirun`."""
    import sys

    from datagen.errors import UserError
    from dlemu.dlio.mpirun import main

    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"dlemu-mpirun: {error}")


def _import_command_line() -> None:
    """Import the command line, which handles Ctrl-C; meanwhile, Ctrl-C ends the process without Python's traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import dlemu.cli

    assert dlemu.cli
    signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    main()

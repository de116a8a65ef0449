"""Entry points of the command-line programs: `dlemu`, `dlio_benchmark`, `python -m dlemu`."""

from __future__ import annotations

import gc
import signal


def main(command_line: str = "main") -> None:
    """Run the function of `dlemu.cli` named `command_line`, and exit with its status.

    Ctrl-C during the import of `dlemu.cli` ends the process without a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import dlemu.cli
    from dlemu.cli.outlets import lasting_outlets

    signal.signal(signal.SIGINT, handler)
    try:
        with lasting_outlets():
            getattr(dlemu.cli, command_line)()
    finally:
        gc.freeze()  # skips the collection at exit, which took a seventh of a short command's CPU time


def dlio_main() -> None:
    main("dlio_main")


if __name__ == "__main__":
    main()

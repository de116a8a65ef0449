"""Entry points of the command-line programs: `dlemu`, `dlio_benchmark`, `python -m dlemu`."""

from __future__ import annotations

import gc
import signal


def main(program: str = "dlemu") -> None:
    """Run the command line of a program, and exit with its status.

    Ctrl-C during the import of `dlemu.cli` ends the process without a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import dlemu.cli
    from dlemu.cli.outlets import unfailing_streams

    signal.signal(signal.SIGINT, handler)
    try:
        with unfailing_streams():
            dlemu.cli.main(program)
    finally:
        gc.freeze()  # skips the collection at exit, which took a seventh of a short command's CPU time


def dlio_main() -> None:
    main("dlio_benchmark")


if __name__ == "__main__":
    main()

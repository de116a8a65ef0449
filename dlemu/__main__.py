"""Entry points of the programs: `dlemu`, `dlio_benchmark`, `python -m dlemu`."""

from __future__ import annotations

import gc
import signal


def main(command_line: str = "main") -> None:
    """Run the function `command_line` of `dlemu.cli`, and end this process with its exit status.

    Ctrl-C while `dlemu.cli` is imported ends the process without Python's traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import dlemu.cli
    from dlemu.cli.outlets import lasting_outlets

    signal.signal(signal.SIGINT, before)
    try:
        with lasting_outlets():
            getattr(dlemu.cli, command_line)()
    finally:
        gc.freeze()  # the process ends: a last search for garbage took a seventh of a short command's CPU time


def dlio_main() -> None:
    main("dlio_main")


if __name__ == "__main__":
    main()

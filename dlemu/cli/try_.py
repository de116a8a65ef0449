"""`dlemu try FOLDER`, or `dlemu FOLDER`: how many accelerators the storage of a folder feeds."""

from __future__ import annotations

import click


@click.command(name="try")
@click.argument("folder")
def command(folder: str) -> None:
    """See in less than a minute how many accelerators a FOLDER's storage feeds.

    \b
    dlemu try /mnt/nvme
    dlemu /mnt/nvme                 # the same

    Writes less than 1 GB into a folder of its own below FOLDER, reads it past the page cache, predicts how many
    accelerators those reads feed, and removes what it wrote, after Ctrl-C too. At least 10 % of the space stays free.

    Exit status: 0, 2 a usage error (too little space, memory in place of a drive), 128 + signal.
    """
    import signal

    from rich.console import Console

    from dlemu.cli.frontends import Terminal
    from dlemu.ranks import interrupt_on
    from dlemu.report.screen import print_screen
    from dlemu.studies.first_look import first_look

    interrupt_on(signal.SIGINT, signal.SIGTERM)
    print_screen(first_look(folder, Terminal()), Console())

"""`dlemu probe`: what can this storage do, before any training?"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from dlemu.cli.options import Number, answer_options


def _bytes(text: str) -> int:
    from dlemu.results.drive import bytes_of  # imports NumPy

    return bytes_of(text)


def _to_tuple(
    item_type: click.ParamType[Any], context: click.Context, option: click.Parameter, text: str | None
) -> tuple[Any, ...]:
    """Convert an option's value `A,B,...` to a tuple; () if the option is not given."""
    items = text.split(",") if text else []
    return tuple(item_type.convert(item.strip(), option, context) for item in items)


_ACCESSES = partial(_to_tuple, click.Choice(["randread", "read", "randwrite", "write"]))
_SIZES = partial(_to_tuple, click.types.FuncParamType(_bytes))
_COUNTS = partial(_to_tuple, click.IntRange(1, 4096))


@click.command(name="probe")
@click.argument("target")
@click.option("--rw", "accesses", metavar="LIST", callback=_ACCESSES, help="randread (default), read, write, randwrite")
@click.option("--sizes", metavar="LIST", callback=_SIZES, help="Request sizes: 4k,16k,128k,1m.")
@click.option("--depths", metavar="LIST", callback=_COUNTS, help="Requests that each job keeps in flight: 1,8,32,128.")
@click.option("--jobs", metavar="LIST", callback=_COUNTS, help="Parallel jobs: 1 (fio's threads, else processes).")
@click.option("--seconds", type=Number(0.1, 1e6), default=2.0, show_default=True, help="Time per size and depth.")
@click.option("--file-size", "file_bytes", metavar="SIZE", type=_bytes, help="Size of the test file: 4g.")
@click.option("--engine", type=click.Choice(["auto", "fio", "threads"]), default="auto", show_default=True)
@click.option("--steady", is_flag=True, help="Repeat each write until it is steady (SNIA); 25 rounds at most.")
@click.option("--output", metavar="DIR", default="", help="Keep the results here. [results/probe/TIME-PROCESS]")
@answer_options("probe.json")
def command(target: str, output: str, as_json: bool, **requests: Any) -> None:
    """Measure what a storage can do, before any training.

    \b
    dlemu probe /mnt/nvme                                    # 4k to 1m, 1 to 128 in flight, past the page cache
    dlemu probe /mnt/nvme --sizes 128k --depths 32
    dlemu probe /mnt/nvme --rw write --sizes 1m --steady           # as a used drive writes

    TARGET is a folder, in which a test file is made and removed again, or an existing file. Requests are made by fio if
    it is installed, otherwise by dlemu's threads.

    Exit status: 0, 2 a usage error, 3 a request failed, 128 + signal.
    """
    import signal

    from dlemu.cli.frontends import Terminal
    from dlemu.cli.options import show_answer
    from dlemu.jobs.probe.run import probe_target
    from dlemu.ranks import interrupt_on

    interrupt_on(signal.SIGTERM)
    answer, folder = probe_target(target, **requests, folder=output, on_event=Terminal(as_json=as_json))
    show_answer(answer, folder, "probe", as_json=as_json, page=True)

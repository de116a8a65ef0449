"""`dlemu reproduce`: make the figures and tables of a vendor's document on your storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlemu.extend import options as command_options

if TYPE_CHECKING:
    from dlemu.contrib.reproduce.document import DocumentQuestion


@click.command(name="reproduce", short_help="Reproduce the figures of a vendor's document on your storage.")
@click.argument("words", nargs=-1, metavar="DOCUMENT drives=FOLDER[,FOLDER] [scale=laptop|full] [KEY=VALUE]...")
@click.option("--price", metavar="A[,B]", help="Price of each storage, in one currency: shows the price per TB.")
@click.option("--watts", metavar="A[,B]", help="Mean power of each storage, W.")
@click.option("--config-dir", "-cd", help="A folder with workload/NAME.yaml of your own.")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@command_options.answer_options("reproduce.json")
def command(
    words: tuple[str, ...], price: str | None, watts: str | None, config_dir: str | None, report: bool, as_json: bool
) -> None:
    """Make the figures and tables of a vendor's document on your storage, for one drive or several side by side.

    \b
    dlemu reproduce kioxia drives=/mnt/a,/mnt/b
    dlemu reproduce micron-9400 drives=/mnt/nvme
    dlemu reproduce amax drives=/mnt/ssd,/mnt/disk,/mnt/nfs --price 900,300,2000
    dlemu reproduce colfax drives=/mnt/ssd,/mnt/disk
    dlemu reproduce micron-6550 drives=/mnt/nvme --watts 20

    At scale=laptop (the default) sizes and times are reduced so that it takes minutes; scale=full uses the document's.
    Further settings apply to every training run. Datasets stay on the drives. When interrupted, the same command with
    output.folder=FOLDER continues. What each document contains: docs/vendor-figures.md.

    Exit status: 0 done, 2 a usage error, 3 a step failed, 128 + signal.
    """
    from dlemu.config.overrides import take_word
    from dlemu.contrib.reproduce.run import reproduce
    from dlemu.extend import Watched
    from dlemu.extend import options as command_options

    folder, others = take_word(words, "output.folder")
    watched = Watched()
    with watched.keeping("finished steps"):
        answer, folder = reproduce(
            _question(others, price, watts), folder=folder, config_dir=config_dir, on_event=watched
        )
    command_options.show_answer(answer, folder, "reproduction", as_json=as_json, page=report)


def _question(words: list[str], price: str | None, watts: str | None) -> DocumentQuestion:
    from dlemu.config.overrides import take_word
    from dlemu.contrib.reproduce.document import DocumentQuestion, document_names
    from dlemu.extend import UserError

    def numbers(text: str | None, option: str) -> tuple[float, ...]:
        found = command_options.numbers_above_0(text) if text is not None else ()
        if text is not None and not found:
            raise UserError(f"{option} {text}: wanted a number above 0 for each drive, as in {option} 900,600")
        return found

    drives, rest = take_word(words, "drives")
    scale, rest = take_word(rest, "scale")
    names = [word for word in rest if "=" not in word]
    if len(names) != 1:
        known = ", ".join(document_names())
        raise UserError(f"wanted one document of {known}, as in `dlemu reproduce kioxia drives=/mnt/a`")
    if scale not in ("", "laptop", "full"):
        raise UserError(f"scale is {scale!r}: wanted laptop or full")
    return DocumentQuestion(
        document=names[0],
        drives=tuple(drive.rstrip("/") for drive in drives.split(",") if drive),
        scale="full" if scale == "full" else "laptop",
        price=numbers(price, "--price"),
        watts=numbers(watts, "--watts"),
        overrides=tuple(word for word in rest if "=" in word),
    )

"""`dlemu reproduce`: make the figures and tables of a vendor's document on your storage."""

from __future__ import annotations

import click

from dlemu.extend import options as command_options


def _numbers(_: click.Context, option: click.Parameter, text: str | None) -> tuple[float, ...]:
    """Return the numbers in `A,B,...`; a callback for click."""
    try:
        return tuple(map(float, text.split(","))) if text is not None else ()
    except ValueError:
        raise click.BadParameter(f"{text}: wanted a number for each drive, as in {option.opts[0]} 900,600") from None


@click.command(name="reproduce", short_help="Reproduce the figures of a vendor's document on your storage.")
@click.argument("words", nargs=-1, metavar="DOCUMENT drives=FOLDER[,FOLDER] [scale=laptop|full] [KEY=VALUE]...")
@click.option("--price", metavar="A[,B]", callback=_numbers, help="Price of each storage: shows the price per TB.")
@click.option("--watts", metavar="A[,B]", callback=_numbers, help="Mean power of each storage, W.")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@command_options.answer_options("reproduce.json")
def command(
    words: tuple[str, ...], price: tuple[float, ...], watts: tuple[float, ...], report: bool, as_json: bool
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
    from dlemu.contrib.reproduce.document import DocumentQuestion, document_names
    from dlemu.contrib.reproduce.run import reproduce
    from dlemu.extend import StudyTerminal, UserError

    output_folder, rest = take_word(words, "output.folder")
    drives, rest = take_word(rest, "drives")
    scale, rest = take_word(rest, "scale")
    names = [word for word in rest if "=" not in word]
    if len(names) != 1:
        raise UserError(f"wanted one document of {', '.join(document_names())}, as: dlemu reproduce amax drives=/mnt/a")
    if scale not in ("", "laptop", "full"):
        raise UserError(f"scale is {scale!r}: wanted laptop or full")
    question = DocumentQuestion(
        document=names[0],
        drives=tuple(drive.rstrip("/") for drive in drives.split(",") if drive),
        scale="full" if scale == "full" else "laptop",
        price=price,
        watts=watts,
        overrides=tuple(word for word in rest if "=" in word),
    )
    with StudyTerminal() as terminal:
        answer, folder = reproduce(question, folder=output_folder, on_event=terminal)
    command_options.show_answer(answer, folder, "reproduction", as_json=as_json, page=report)

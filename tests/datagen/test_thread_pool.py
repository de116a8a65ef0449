"""How far a dataset is, also where nobody knows before how large its files will be."""

from __future__ import annotations

from datagen.thread_pool import Tally


def test_unknown_sizes_are_estimated_from_the_files_made() -> None:
    tally = Tally(4, 400, exact=False)
    assert tally.progress().total_bytes == 400
    for made in range(1, 5):
        tally.add(files=1, size_bytes=357)
        told = tally.progress()
        assert (told.bytes, told.total_bytes, told.files, told.total_files) == (made * 357, 4 * 357, made, 4)


def test_known_sizes_stay_as_they_are() -> None:
    tally = Tally(4, 400, exact=True)
    tally.add(files=1, size_bytes=70)
    assert tally.progress().total_bytes == 400

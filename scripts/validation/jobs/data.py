"""Makes the files that the jobs train on: `python data.py KIND FOLDER MB`. Their sizes vary as in real datasets."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

FLOATS = 16_384
"""Numbers in a row's embedding, and in a latent."""


def pictures(folder: str, random: np.random.Generator) -> Iterator[int]:
    """JPEGs of 60 to 500 kB, with lognormal sizes: cut-outs of one picture of noise."""
    noise = random.integers(0, 255, (1400, 1400, 3), np.uint8)
    for number in range(10**6):
        class_folder = os.path.join(folder, f"class{number % 10}")
        os.makedirs(class_folder, exist_ok=True)
        side = int(np.clip(random.lognormal(np.log(430), 0.25), 240, 900))
        left, top = random.integers(0, 1400 - side, 2)
        path = os.path.join(class_folder, f"{number}.JPEG")
        Image.fromarray(noise[top : top + side, left : left + side]).save(path, quality=85)
        yield os.path.getsize(path)


def tokens(folder: str, random: np.random.Generator) -> Iterator[int]:
    """One file of tokens."""
    with open(os.path.join(folder, "train.bin"), "wb") as file:
        while True:
            yield file.write(random.integers(0, 50_000, 1 << 20, np.uint16).tobytes())


def crops(folder: str, random: np.random.Generator) -> Iterator[int]:
    """Volumes of 1 to 3 MB with their labels."""
    for number in range(10**6):
        shape = random.integers(56, 88, 3)
        volume = random.random(shape, np.float32)
        path = os.path.join(folder, f"case{number}.npz")
        np.savez(path, x=volume, y=(volume > 0.5).astype(np.uint8))
        yield os.path.getsize(path)


def rows(folder: str, random: np.random.Generator) -> Iterator[int]:
    """Files of 8 row groups of 100 rows: an embedding of 32 KiB, and an id that training does not read."""
    for number in range(10**6):
        path = os.path.join(folder, f"part-{number}.parquet")
        schema = pyarrow.schema([("embedding", pyarrow.binary()), ("id", pyarrow.int64())])
        with pyarrow.parquet.ParquetWriter(path, schema, compression="NONE", use_dictionary=False) as file:
            for _ in range(8):
                values = [random.random(FLOATS, np.float32).astype(np.float16).tobytes() for _ in range(100)]
                file.write_table(pyarrow.table({"embedding": values, "id": range(100)}, schema))
        yield os.path.getsize(path)


def shards(folder: str, random: np.random.Generator) -> Iterator[int]:
    """Tar files of 200 latents of 64 KiB, each with a caption."""
    for number in range(10**6):
        path = os.path.join(folder, f"shard-{number:06}.tar")
        with tarfile.open(path, "w") as tar:
            for sample in range(200):
                latent = io.BytesIO()
                np.save(latent, random.random((4, 64, FLOATS // 128), np.float32))
                caption = f'{{"caption": "sample {sample}"}}'.encode()
                for ending, data in (("npy", latent.getvalue()), ("json", caption)):
                    member = tarfile.TarInfo(f"{sample:06}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        yield os.path.getsize(path)


KINDS: dict[str, Callable[[str, np.random.Generator], Iterator[int]]] = {
    "pictures": pictures,
    "tokens": tokens,
    "crops": crops,
    "rows": rows,
    "shards": shards,
}


def main() -> None:
    kind, folder, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.makedirs(folder, exist_ok=True)
    total_bytes, target_bytes = 0, megabytes * 10**6
    for size_bytes in KINDS[kind](folder, np.random.default_rng(7)):
        total_bytes += size_bytes
        if total_bytes >= target_bytes:
            return


if __name__ == "__main__":
    main()

"""Packs TIFF images as a short script would: `plain_pack SOURCE TARGET PROCESSES HEIGHT WIDTH`.

Each task of a pool of processes makes one packed file: Pillow opens, converts and resizes the images, whose pixels are
written as a TFRecord file with TensorFlow's framing; the file is synced and renamed. Prints one JSON object: the bytes
read, and wall_seconds since all processes had started.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import sys
import time
from collections.abc import Sequence
from functools import partial

import google_crc32c
from PIL import Image

FILES_EACH = 4
"""Packed files per process, as in dlemu."""


def pack(paths: Sequence[str], target: str, processes: int, height: int, width: int) -> dict[str, float]:
    """Pack the images with a pool of processes; return the bytes read and the time."""
    images_per_file = max(1, len(paths) // (FILES_EACH * processes))
    tasks = [paths[first : first + images_per_file] for first in range(0, len(paths), images_per_file)]
    with multiprocessing.get_context("fork").Pool(processes, initializer=Image.init) as pool:
        pool.map(len, [""] * processes)  # returns when the processes have started
        start = time.monotonic()
        work = partial(pack_file, target=target, height=height, width=width)
        read_bytes = sum(pool.imap_unordered(work, tasks))
        return {"bytes": read_bytes, "wall_seconds": time.monotonic() - start}


def pack_file(paths: Sequence[str], target: str, height: int, width: int) -> int:
    """Make one packed file; return the bytes read."""
    path = os.path.join(target, os.path.basename(paths[0]) + ".tfrecord")
    with open(path + ".part", "wb") as out:
        for image_path in paths:
            with Image.open(image_path) as image:
                small = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
            out.write(framed(example(small.tobytes())))
        out.flush()
        os.fsync(out.fileno())
    os.rename(path + ".part", path)
    return sum(os.path.getsize(image_path) for image_path in paths)


def framed(data: bytes) -> bytes:
    """Return a record of a TFRecord file."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """Return the masked CRC of TFRecord."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def example(image: bytes) -> bytes:
    """Return a tf.train.Example with one feature, `image`."""
    value = field(1, image)
    entry = field(1, b"image") + field(2, field(1, value))
    return field(1, field(1, entry))


def field(number: int, value: bytes) -> bytes:
    """Return a bytes field in protobuf's wire format."""
    size, length = len(value), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([size]) + value


if __name__ == "__main__":
    source, target, *numbers = sys.argv[1:]
    names = sorted(os.listdir(source))
    print(json.dumps(pack([os.path.join(source, name) for name in names], target, *map(int, numbers))))

"""The plain packer: `plain_pack SOURCE TARGET PROCESSES HEIGHT WIDTH` packs TIFF images as a short script would.

A pool of processes, each of whose tasks is one packed file: Pillow opens, converts and resizes each image, and its
pixels go into a TFRecord, framed as TensorFlow's writer does, which is synced and renamed. Prints one JSON object: the
bytes that it read and wall_seconds, from the moment when the pool's processes have begun.
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
"""Packed files for each process, as dlemu makes them."""


def pack(paths: Sequence[str], target: str, processes: int, height: int, width: int) -> dict[str, float]:
    """Pack the images with a pool of so many processes."""
    each = max(1, len(paths) // (FILES_EACH * processes))
    tasks = [paths[first : first + each] for first in range(0, len(paths), each)]
    with multiprocessing.get_context("fork").Pool(processes, initializer=Image.init) as pool:
        pool.map(len, [""] * processes)  # every process has begun
        started = time.monotonic()
        work = partial(pack_file, target=target, height=height, width=width)
        read = sum(pool.imap_unordered(work, tasks))
        return {"bytes": read, "wall_seconds": time.monotonic() - started}


def pack_file(paths: Sequence[str], target: str, height: int, width: int) -> int:
    """Make one packed file; return the bytes that were read for it."""
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
    """Return a TFRecord's record."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """Return a sum as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def example(image: bytes) -> bytes:
    """Return a tf.train.Example of one feature `image`."""
    value = field(1, image)
    entry = field(1, b"image") + field(2, field(1, value))
    return field(1, field(1, entry))


def field(number: int, value: bytes) -> bytes:
    """Return a field of protobuf's wire format."""
    size, length = len(value), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([size]) + value


if __name__ == "__main__":
    source, target, *numbers = sys.argv[1:]
    names = sorted(os.listdir(source))
    print(json.dumps(pack([os.path.join(source, name) for name in names], target, *map(int, numbers))))

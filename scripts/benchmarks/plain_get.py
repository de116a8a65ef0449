"""Plain clients of an object store, which GET objects into buffers that are reused.

`plain_get CLIENT EPOCHS WARM_UP HOST PORT BUCKET KEY...` prints JSON as `plain_files read` does. CLIENT is `bare`
(sockets without signature, checks and retries, faster than any real client), `signed` (the same with dlemu's signature)
or `obstore`, a well-maintained client that signs, checks and retries. obstore is used in the fastest way found: with
`THREADS` threads, each with a buffer of its own.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from datagen.storage._s3_access import EMPTY_SHA256, Signer

RECEIVE_BYTES = 1 << 16
BUFFER_BYTES = 1 << 28
THREADS = 4
"""Requests that obstore has in flight: faster than one at a time up to 8 MB, as fast above. Its async API is slower."""
WHOLE_BYTES = 1 << 24
"""Larger objects are faster as a stream of chunks from obstore than as one `bytes()`."""
REGION = "us-east-1"
Get = Callable[[Sequence[str]], int]
"""Fetches objects by their keys; returns their bytes."""


def by_sockets(host: str, port: int, bucket: str, *, signed: bool) -> Get:
    """GET over one connection into one buffer."""
    buffer = _buffer()
    connection = socket.create_connection((host, port))
    signer, authority, view = Signer("", REGION), f"{host}:{port}", memoryview(buffer)

    def get(key: str) -> int:
        path = f"/{bucket}/{key}"
        lines = signer.lines("GET", authority, path, "", EMPTY_SHA256) if signed else f"Host: {authority}\r\n"
        connection.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        received = 0
        while (end := buffer.find(b"\r\n\r\n", 0, received)) < 0:
            received += connection.recv_into(view[received : received + RECEIVE_BYTES])
        head = bytes(view[:end]).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"{path}: {head[:100]!r}")
        size = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        total = end + 4 + size
        while received < total:
            received += connection.recv_into(view[received:total])
        return size

    return lambda keys: sum(map(get, keys))


def by_obstore(host: str, port: int, bucket: str) -> Get:
    """GET by obstore, whose bytes are copied into buffers."""
    obstore: Any = importlib.import_module("obstore")
    store = importlib.import_module("obstore.store").S3Store(
        bucket,
        endpoint=f"http://{host}:{port}",
        region=REGION,
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    pool, buffers = ThreadPoolExecutor(THREADS), [memoryview(_buffer()) for _ in range(THREADS)]

    def get(key: str, buffer: memoryview) -> int:
        response = obstore.get(store, key)
        is_small = response.meta["size"] <= WHOLE_BYTES
        end = 0
        for chunk in [response.bytes()] if is_small else response.stream(min_chunk_size=RECEIVE_BYTES):
            data = memoryview(chunk)
            begin, end = end, end + len(data)
            buffer[begin:end] = data
        return end

    def share(number: int, keys: Sequence[str]) -> int:
        return sum(get(key, buffers[number]) for key in keys[number::THREADS])

    return lambda keys: sum(pool.map(share, range(THREADS), [keys] * THREADS))


def _buffer() -> mmap.mmap:
    """Return a buffer in huge pages, which NumPy requests for its arrays and dlemu for its buffers."""
    memory = mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def main() -> None:
    """Fetch all objects, epoch after epoch, and print bytes and times of the epochs after the warm-up."""
    client, epochs, warm_up, host, port, bucket, *keys = sys.argv[1:]
    address = host, int(port), bucket
    get = by_obstore(*address) if client == "obstore" else by_sockets(*address, signed=client == "signed")
    total = 0
    started = cpu = 0.0
    for epoch in range(int(epochs)):
        if epoch == int(warm_up):
            started, cpu, total = time.perf_counter(), time.process_time(), 0
        total += get(keys)
    result = {"bytes": total, "wall_seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""The fastest plain client of an object store: GET by bare sockets into one buffer, no signature, no checks.

python -m benchmarks.plain_get EPOCHS WARM_UP HOST PORT PATH...: prints JSON as `plain_read` does.
"""

from __future__ import annotations

import json
import socket
import sys
import time

PIECE_BYTES = 1 << 16


def fetch(connection: socket.socket, host: str, path: str, buffer: bytearray) -> int:
    """Fetch an object into the buffer, which is long enough; return its bytes."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    view, got = memoryview(buffer), 0
    while (end := buffer.find(b"\r\n\r\n", 0, got)) < 0:
        got += connection.recv_into(view[got : got + PIECE_BYTES])
    head = bytes(view[:end]).lower()
    if not head.startswith(b"http/1.1 200"):
        raise SystemExit(f"{path}: {head[:100]!r}")
    size = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    whole = end + 4 + size
    while got < whole:
        got += connection.recv_into(view[got:whole])
    return size


def main() -> None:
    """Fetch all paths, epoch after epoch, and print what that took after the first epochs."""
    epochs, warm_up, host, port, *paths = sys.argv[1:]
    buffer = bytearray(1 << 28)
    taken = 0
    started = cpu = 0.0
    with socket.create_connection((host, int(port))) as connection:
        for epoch in range(int(epochs)):
            if epoch == int(warm_up):
                started, cpu, taken = time.perf_counter(), time.process_time(), 0
            for path in paths:
                taken += fetch(connection, host, path, buffer)
    took = {"bytes": taken, "wall_seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(took))


if __name__ == "__main__":
    main()

"""One stream between two ranks of a node: framed, with a deadline, and clear about how it ended."""

from __future__ import annotations

import contextlib
import enum
import math
import socket
import struct
import time

from datagen.errors import DlemuError
from dlemu.comm.comm_base import PeerLostError

CHUNK_BYTES = 1 << 20
_HEADER = struct.Struct("<qq")
_TIMEVAL = struct.Struct("@ll")
_LONGEST_SECONDS = 1e8  # about three years: stands for "no deadline" and fits the kernel's jiffies
_SLACK_SECONDS = 0.1  # a deadline this much off is left alone: renewing it costs a system call per wait
_NOTICE_BYTES = 4000


class Frame(enum.IntEnum):
    """What a frame is for; its number is a value (MAXIMUM) or how many bytes follow (the others)."""

    MAXIMUM = 1
    GATHER = 2
    BROADCAST = 3
    LOST = 4
    HELLO = 5


_PURPOSE = {
    Frame.MAXIMUM: "meeting",
    Frame.GATHER: "gather",
    Frame.BROADCAST: "broadcast",
    Frame.LOST: "notice of loss",
    Frame.HELLO: "first meeting",
}


class Connection:
    """A connected stream socket to one peer.

    The socket stays in blocking mode and the kernel keeps the time (SO_RCVTIMEO), so a wait is one system call
    that a signal handler may break with an exception.
    """

    def __init__(self, stream: socket.socket, peer: str, timeout_seconds: float, patience_seconds: float) -> None:
        """`peer` is how messages name the other side; it is given up after timeout + patience seconds.

        `patience_seconds` lets the rank nearest to the missing one speak first, since it knows best who is missing.
        """
        stream.settimeout(None)
        self._stream = stream
        self._peer = peer
        self._patience_seconds = patience_seconds
        self._kernel_seconds = math.nan
        self.set_timeout(timeout_seconds)

    def set_timeout(self, timeout_seconds: float) -> None:
        """Give the peer up after so long, patience added."""
        self._timeout_seconds = timeout_seconds
        whole = min(timeout_seconds + self._patience_seconds, _LONGEST_SECONDS)
        self._set_kernel_seconds(whole)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(whole))

    def send(self, frame: Frame, number: int) -> None:
        """Send a frame that is a number alone, or the head of `number` bytes."""
        self.send_bytes(_HEADER.pack(frame, number))

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes that belong to the last frame."""
        try:
            self._stream.sendall(data)
        except BlockingIOError as error:
            raise PeerLostError(f"{self._peer} took nothing for {self._timeout_seconds:g} s") from error
        except (BrokenPipeError, ConnectionResetError) as error:
            words = self._last_words()
            raise (PeerLostError(words) if words else self._ended()) from error

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        """Wait for a frame of this kind and return its number.

        The deadline counts from `started_seconds` (time.monotonic()), or from now; math.inf means none.
        """
        started_seconds = time.monotonic() if started_seconds is None else started_seconds
        self._expect_by(started_seconds + self._timeout_seconds + self._patience_seconds)
        header = bytearray(_HEADER.size)
        self._fill(memoryview(header), frame)
        kind, number = _HEADER.unpack(header)
        if kind == frame:
            return int(number)
        if kind == Frame.LOST:
            raise PeerLostError(self._notice(number))
        raise self._out_of_step(kind, frame)

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        """Receive the bytes of a frame whose head was just received."""
        data = bytearray(num_bytes)
        self._fill(memoryview(data), frame)
        return data

    def relay_bytes(self, num_bytes: int, frame: Frame, target: Connection) -> None:
        """Pass the bytes of a frame on to `target` without holding them all."""
        buffer = memoryview(bytearray(min(num_bytes, CHUNK_BYTES)))
        while num_bytes > 0:
            part = buffer[: min(num_bytes, len(buffer))]
            self._fill(part, frame)
            target.send_bytes(part)
            num_bytes -= len(part)

    def notify(self, message: str) -> None:
        """Tell the peer that a rank is lost, if it can be told without waiting."""
        text = message.encode()[:_NOTICE_BYTES]
        with contextlib.suppress(OSError):
            self._stream.send(_HEADER.pack(Frame.LOST, len(text)) + text, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._stream.close()

    def _fill(self, view: memoryview, frame: Frame) -> None:
        while view:
            try:
                count = self._stream.recv_into(view, min(len(view), CHUNK_BYTES), socket.MSG_WAITALL)
            except BlockingIOError as error:
                message = f"{self._peer} did not arrive at a {_PURPOSE[frame]} within {self._timeout_seconds:g} s"
                raise PeerLostError(message) from error
            except ConnectionResetError as error:
                raise self._ended() from error
            if count == 0:
                raise self._ended()
            view = view[count:]

    def _ended(self) -> PeerLostError:
        return PeerLostError(f"{self._peer} ended without a word")

    def _out_of_step(self, kind: int, frame: Frame) -> DlemuError:
        seen = _PURPOSE[Frame(kind)] if kind in list(Frame) else f"frame of unknown kind {kind}"
        return DlemuError(
            f"{self._peer} is at a {seen} where this rank is at a {_PURPOSE[frame]}: all ranks must make the same "
            "calls in the same order"
        )

    def _notice(self, num_bytes: int) -> str:
        return self.receive_bytes(min(num_bytes, _NOTICE_BYTES), Frame.LOST).decode(errors="replace")

    def _last_words(self) -> str:
        """Return the notice that a peer left before it closed, or nothing."""
        try:
            kind, num_bytes = _HEADER.unpack(self._stream.recv(_HEADER.size, socket.MSG_DONTWAIT))
            return self._notice(num_bytes) if kind == Frame.LOST else ""
        except (DlemuError, OSError, struct.error):
            return ""

    def _expect_by(self, deadline_seconds: float) -> None:
        rest = min(deadline_seconds - time.monotonic(), _LONGEST_SECONDS)
        if not abs(rest - self._kernel_seconds) <= _SLACK_SECONDS:
            self._set_kernel_seconds(rest)

    def _set_kernel_seconds(self, seconds: float) -> None:
        self._kernel_seconds = max(seconds, 0.001)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._kernel_seconds))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return _TIMEVAL.pack(whole, int((seconds - whole) * 1e6))

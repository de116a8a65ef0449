"""Authentication codes: prove that bytes from the network belong to this run, before anything unpickles them."""

from __future__ import annotations

import hashlib
import hmac
import struct
from array import array
from collections.abc import Sequence

from datagen.errors import DlemuError

CODE_NUMBERS = 2
"""Length of a code, in 64-bit numbers."""
TO_ALL = -1
"""Takes the place of a rank's number in the code of a payload that is broadcast."""


class Seal:
    """Codes of payloads (keyed BLAKE2b, RFC 7693). They also cover the call's number, so none can be replayed."""

    def __init__(self, secret: bytes, way: str) -> None:
        """`way` is how error messages name the transport: "MPI" or "TCP"."""
        self._secret, self._way, self._calls = secret, way, 0

    def next_call(self) -> None:
        """Count a collective call; every host counts the same calls."""
        self._calls += 1

    def code(self, rank: int, payload: bytes | bytearray) -> array[int]:
        """Return the payload's code in the present call, as 64-bit numbers; `rank` is its owner, or TO_ALL."""
        code = hashlib.blake2b(struct.pack("<qq", self._calls, rank), key=self._secret, digest_size=8 * CODE_NUMBERS)
        code.update(payload)
        return array("q", code.digest())

    def check(self, rank: int, payload: bytes | bytearray, code: Sequence[int], sender: str) -> None:
        """Raise DlemuError unless this code is the payload's."""
        if not hmac.compare_digest(self.code(rank, payload).tobytes(), array("q", code).tobytes()):
            raise DlemuError(
                f"a message over {self._way} in place of one from {sender} is not from this run, and was not read: "
                f'keep other processes away from the ports of {self._way} (docs/reliability.md, "Others on the host '
                'and the network")'
            )

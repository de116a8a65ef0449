"""What proves that bytes that came over the network are of this run, before anything unpickles them."""

from __future__ import annotations

import hashlib
import hmac
import struct
from array import array
from collections.abc import Sequence

from datagen.errors import DlemuError

CODE_NUMBERS = 2
"""Of a code, in numbers of 64 bits."""
TO_ALL = -1
"""Where a payload's code has a rank's number."""


class Seal:
    """Codes of payloads (keyed BLAKE2b, RFC 7693) over their place in the order of calls too."""

    def __init__(self, secret: bytes, way: str) -> None:
        """`way` is what messages call that on which the payloads came."""
        self._secret, self._way, self._calls = secret, way, 0

    def next_call(self) -> None:
        """Begin a call, as all other hosts do."""
        self._calls += 1

    def code(self, rank: int, payload: bytes | bytearray) -> array[int]:
        """Return what proves that this payload belongs to this call of this run, as numbers."""
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

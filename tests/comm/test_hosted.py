"""Which processes may run each other's ranks."""

from __future__ import annotations

import os
import resource

from dlemu.comm import hosted


def test_what_a_fork_would_take_over_tells_processes_apart() -> None:
    """Each in a child of its own: what a rank of a launcher's may have been given that another has not."""

    def changed(change: str) -> bool:
        before, (receiver, sender) = hosted._surroundings(), os.pipe()
        child = os.fork()
        if child == 0:
            if change == "limit":
                soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
            elif change == "priority":
                os.nice(1)
            elif change == "folder":
                os.chdir("/")
            os.write(sender, b"y" if hosted._surroundings() != before else b"n")
            os._exit(0)
        os.close(sender)
        with open(receiver, "rb") as answer:
            told = answer.read()
        os.waitpid(child, 0)
        return told == b"y"

    assert not changed("nothing")
    assert changed("limit")
    assert changed("priority")
    assert changed("folder")

"""Ranks: how they find each other, communicate and fail together. No other package knows whether MPI is used.

The ranks of a host talk over inherited sockets (`comm`); MPI or gloo (`mpi`, `torchrun`) carries only messages between
hosts. This package may import dlemu.machine and datagen.
"""

from dlemu.ranks.comm import Comm as Comm
from dlemu.ranks.comm import PeerLostError as PeerLostError
from dlemu.ranks.comm import name_ranks as name_ranks
from dlemu.ranks.failure import Failure as Failure
from dlemu.ranks.failure import first_failure as first_failure
from dlemu.ranks.launch import run_ranks as run_ranks
from dlemu.ranks.launcher import detect_launcher as detect_launcher
from dlemu.ranks.process_control import Interrupted as Interrupted
from dlemu.ranks.process_control import PatienceError as PatienceError
from dlemu.ranks.process_control import die_with_parent as die_with_parent
from dlemu.ranks.process_control import interrupt_on as interrupt_on
from dlemu.ranks.process_control import within as within

"""Ranks: how they find each other, agree and fail together. No other package knows whether MPI is used.

On a node ranks talk over Unix sockets; MPI carries only what crosses nodes. May import datagen alone.
"""

from dlemu.comm.comm_base import Comm as Comm
from dlemu.comm.comm_base import Interrupted as Interrupted
from dlemu.comm.comm_base import Launcher as Launcher
from dlemu.comm.comm_base import PeerLostError as PeerLostError
from dlemu.comm.comm_base import detect_launcher as detect_launcher
from dlemu.comm.comm_base import launcher_size as launcher_size
from dlemu.comm.comm_base import name_ranks as name_ranks
from dlemu.comm.failure import Failure as Failure
from dlemu.comm.failure import RankEnd as RankEnd
from dlemu.comm.failure import first_failure as first_failure
from dlemu.comm.launch import run_ranks as run_ranks
from dlemu.comm.local import LocalComm as LocalComm
from dlemu.comm.process_control import PatienceError as PatienceError
from dlemu.comm.process_control import die_with_parent as die_with_parent
from dlemu.comm.process_control import interrupt_on as interrupt_on
from dlemu.comm.process_control import within as within

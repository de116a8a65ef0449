import mmap
import os

from dlemu.comm.leftovers import remove_shared_memory


def test_the_names_of_mapped_mpi_memory_go_and_nothing_else() -> None:
    ours, others = f"/dev/shm/mpich_shm_test_{os.getpid()}", f"/dev/shm/stranger_{os.getpid()}"
    maps = []
    try:
        for path in (ours, others):
            with open(path, "w+b") as file:
                file.write(bytes(4096))
                file.flush()
                maps.append(mmap.mmap(file.fileno(), 4096))
        remove_shared_memory()
        assert not os.path.exists(ours)
        assert os.path.exists(others)
        maps[0][0] = 1  # the memory itself stays
    finally:
        for memory in maps:
            memory.close()
        for path in (ours, others):
            if os.path.exists(path):
                os.unlink(path)

"""Collectives and objects of three or more ranks; every value is checked."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size

for length in (1, 1000, 9000, 200_000, 2_000_000):
    mine = np.full(length, rank, "i4")
    total = np.empty_like(mine)
    world.Allreduce(mine, total)
    assert (total == sum(range(size))).all()
    right, left = (rank + 1) % size, (rank - 1) % size
    theirs = np.empty_like(mine)
    world.Sendrecv(mine, right, recvbuf=theirs, source=left)
    assert (theirs == left).all()
    every = np.empty(size * length, "i4")
    world.Allgather(mine, every)
    assert all((every[i * length : (i + 1) * length] == i).all() for i in range(size))
    world.Bcast(mine, root=size - 1)
    assert (mine == size - 1).all()

assert world.gather({"rank": rank}, root=0) == ([{"rank": i} for i in range(size)] if rank == 0 else None)
assert world.alltoall([(rank, i) for i in range(size)]) == [(i, rank) for i in range(size)]

# An unexpected message is looked at, then received by its handle.
if rank == 0:
    for other in range(1, size):
        status = MPI.Status()
        handle = world.Mprobe(source=other, status=status)
        assert status.Get_count() == 100 * other
        assert handle.recv is not None
        buffer = bytearray(status.Get_count())
        handle.Recv(buffer)
        assert bytes(buffer) == bytes([other]) * (100 * other)
else:
    world.Send(bytes([rank]) * (100 * rank), dest=0)

world.Barrier()
if rank == 0:
    print(f"{size} ranks: every value was right")

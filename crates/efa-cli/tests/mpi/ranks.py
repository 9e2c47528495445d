"""Messages and windows of MPI between all ranks, every byte checked."""

import array
import sys

from mpi4py import MPI

SIZES = [0, 1, 8, 5000, 20_000, 100_000, 1 << 20, 3_000_000]
WINDOW = 300_000

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
right, left = (rank + 1) % ranks, (rank - 1) % ranks


def pattern(of, size):
    return bytes((of * 31 + i) % 251 for i in range(min(size, 251))) * (size // 251 + 1)


def expect(found, expected, what):
    if found != expected:
        print(f"rank {rank}: wrong {what}", flush=True)
        world.Abort(1)


# Messages: all sizes to the neighbour, once received before they come and once after.
for size in SIZES:
    for late in (False, True):
        sent, got = bytearray(pattern(rank, size)[:size]), bytearray(size)
        send = world.Isend([sent, MPI.BYTE], right, tag=size % 1000) if late else None
        if late:
            world.Barrier()
        receive = world.Irecv([got, MPI.BYTE], left, tag=size % 1000)
        if not late:
            world.Barrier()
            send = world.Isend([sent, MPI.BYTE], right, tag=size % 1000)
        MPI.Request.Waitall([send, receive])
        expect(bytes(got), pattern(left, size)[:size], f"message of {size} bytes, late: {late}")

# Windows: a put, a get and a sum, each in an epoch of its own.
memory = bytearray(WINDOW)
window = MPI.Win.Create(memory, 1, comm=world)
window.Fence()
put = bytearray(pattern(rank, WINDOW)[:WINDOW])
window.Put([put, MPI.BYTE], right)
window.Fence()
expect(bytes(memory), pattern(left, WINDOW)[:WINDOW], "bytes that were put")
got = bytearray(WINDOW)
window.Get([got, MPI.BYTE], right)
window.Fence()
expect(bytes(got), pattern(rank, WINDOW)[:WINDOW], "bytes that were got")
window.Free()

sums = array.array("q", [rank] * 1000)
window = MPI.Win.Create(sums, 8, comm=world)
window.Fence()
added = array.array("q", range(1000))
for other in range(ranks):
    window.Accumulate([added, MPI.INT64_T], other, op=MPI.SUM)
window.Fence()
expect(list(sums), [rank + ranks * i for i in range(1000)], "sums")
window.Free()

world.Barrier()
if rank == 0:
    library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
    print(f"{ranks} ranks of {library}: every byte was right", flush=True)
sys.stdout.flush()

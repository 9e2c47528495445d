"""Traffic of MPI programs that leaves messages unreceived for a while. How to run it: README.md."""

import time, numpy as np
from mpi4py import MPI
c = MPI.COMM_WORLD; r, n = c.rank, c.size
for size in (8, 1000, 8000, 60000, 200000):          # alltoall and friends, 20 times each
    a = np.zeros((n, size), 'u1'); b = np.zeros_like(a); g = np.zeros((n, size), 'u1') if r == 0 else None
    for _ in range(20):
        c.Alltoall(a, b); c.Gather(a[0], g, 0); c.Bcast(a[0], 0); c.Allgather(a[0], b)
    for _ in range(200):                              # reductions to one root, nobody waits for it
        c.Reduce(a[0], b[0], MPI.MAX, 0)
    c.Barrier()
for size in (8, 8000, 60000):                         # the root computes while everyone sends its rows
    if r:
        q = [c.Isend(np.zeros(size, 'u1'), 0, i) for i in range(500)]; MPI.Request.Waitall(q)
    else:
        time.sleep(1)
        for i in range(500):
            for s in range(1, n): c.Recv(np.zeros(size, 'u1'), s, i)
    c.Barrier()
for _ in range(200):                                  # halo exchange, all sends before the receives
    q = [c.Isend(np.zeros(30000, 'u1'), (r + d) % n, d % 5) for d in (1, n - 1)]
    for d in (1, n - 1): c.Recv(np.zeros(30000, 'u1'), (r - d) % n, d % 5)
    MPI.Request.Waitall(q)
for k in range(300):                                  # master and workers with pickled tasks
    if r == 0:
        for s in range(1, n): c.send({'task': k, 'data': b'x' * 5000}, s, 1)
        for s in range(1, n): c.recv(source=MPI.ANY_SOURCE, tag=2)
    else:
        t = c.recv(source=0, tag=1); c.send({'result': k, 'data': b'y' * 20000}, 0, 2)
for size in (8, 8000, 60000, 1 << 20):                # bandwidth, a window of 64, all to the right
    w = [np.zeros(size, 'u1') for _ in range(64)]
    for _ in range(20):
        q = [c.Isend(x, (r + 1) % n, 7) for x in w]
        q += [c.Irecv(np.zeros(size, 'u1'), (r - 1) % n, 7) for _ in w]
        MPI.Request.Waitall(q)

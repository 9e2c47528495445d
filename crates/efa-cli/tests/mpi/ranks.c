/*
 * What MPI programs do, with every byte checked: messages around a ring in each size class of the
 * protocol, by wild cards and by name; bursts that arrive before their receives; collectives; windows.
 *
 *   0 ──► 1 ──► … ──► n-1 ──► 0
 *
 * Prints one line if all was right. `tests/openmpi.rs` runs it on the software device.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 4, BURST = 300, CELLS = 1000, DEADLINE_SECONDS = 100 };

static int rank, ranks, next, previous;

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d of %d: %s\n", rank, ranks, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char byte_of(int sender, int round, int at)
{
    return (unsigned char)(((unsigned)at * 2654435761u >> 16) + (unsigned)(sender * 41 + round * 7));
}

static void around_the_ring(int length)
{
    unsigned char *out = malloc(length + 1), *in = malloc(length + 1);
    expect(out && in, "no memory");
    for (int round = 0; round < ROUNDS; round++) {
        int source = round & 1 ? MPI_ANY_SOURCE : previous;
        int tag = round & 2 ? MPI_ANY_TAG : round;
        MPI_Status status;
        int received;

        for (int at = 0; at < length; at++) {
            out[at] = byte_of(rank, round, at);
            in[at] = 0;
        }
        MPI_Sendrecv(out, length, MPI_BYTE, next, round, in, length, MPI_BYTE, source, tag,
                     MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &received);
        expect(received == length, "a message has another length");
        expect(status.MPI_SOURCE == previous && status.MPI_TAG == round, "it is another message");
        for (int at = 0; at < length; at++)
            expect(in[at] == byte_of(previous, round, at), "a message has other bytes");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(out);
    free(in);
}

/* The receives come late, and the last first; of those with one tag, the order counts. */
static void bursts(void)
{
    static int out[2 * BURST], in[2 * BURST];
    MPI_Request requests[4 * BURST];

    for (int i = 0; i < 2 * BURST; i++) {
        out[i] = rank * 10000 + i;
        MPI_Isend(&out[i], 1, MPI_INT, next, i < BURST ? i : BURST, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < BURST; i++) {
        int late = BURST - 1 - i;
        MPI_Irecv(&in[late], 1, MPI_INT, previous, late, MPI_COMM_WORLD, &requests[2 * BURST + i]);
    }
    for (int i = BURST; i < 2 * BURST; i++)
        MPI_Irecv(&in[i], 1, MPI_INT, previous, BURST, MPI_COMM_WORLD, &requests[2 * BURST + i]);
    MPI_Waitall(4 * BURST, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 2 * BURST; i++)
        expect(in[i] == previous * 10000 + i, "a message of a burst went to another receive");
}

static void collectives(int count)
{
    int *out = malloc(sizeof(int) * count * ranks), *in = malloc(sizeof(int) * count * ranks);
    expect(out && in, "no memory");
    for (int to = 0; to < ranks; to++)
        for (int i = 0; i < count; i++)
            out[to * count + i] = rank * 7 + to * 13 + i;
    MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < count; i++)
            expect(in[from * count + i] == from * 7 + rank * 13 + i, "MPI_Alltoall mixed it up");
    MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        expect(in[i] == 7 * ranks * (ranks - 1) / 2 + ranks * i, "MPI_Allreduce miscounted");
    free(out);
    free(in);
}

static void windows(void)
{
    int *cells, mine[CELLS], one = 1;
    MPI_Win window;

    MPI_Win_allocate(sizeof mine, sizeof *mine, MPI_INFO_NULL, MPI_COMM_WORLD, &cells, &window);
    for (int i = 0; i < CELLS; i++) {
        mine[i] = rank * 10000 + i;
        cells[i] = -1;
    }
    MPI_Win_fence(0, window);
    MPI_Put(mine, CELLS, MPI_INT, next, 0, CELLS, MPI_INT, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < CELLS; i++)
        expect(cells[i] == previous * 10000 + i, "MPI_Put wrote something else");
    MPI_Win_fence(0, window);
    for (int to = 0; to < ranks; to++)
        MPI_Accumulate(&one, 1, MPI_INT, to, 0, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    expect(cells[0] == previous * 10000 + ranks, "MPI_Accumulate miscounted");
    MPI_Get(mine, CELLS, MPI_INT, next, 0, CELLS, MPI_INT, window);
    MPI_Win_fence(0, window);
    expect(mine[CELLS - 1] == rank * 10000 + CELLS - 1, "MPI_Get read something else");
    MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
    /* Each process has an end, also if the one that started it has gone. */
    alarm(DEADLINE_SECONDS);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    next = (rank + 1) % ranks;
    previous = (rank + ranks - 1) % ranks;

    int lengths[] = {0, 1, 8, 4000, 8000, 9000, 20000, 65536, 70000, 300000, 1 << 20, 4 << 20};
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
        around_the_ring(lengths[i]);
    bursts();
    collectives(30000);
    windows();

    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: every byte was right\n", ranks);
    MPI_Finalize();
    return 0;
}

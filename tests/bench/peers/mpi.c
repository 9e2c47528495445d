/* Messages between two processes of MPI. Arguments:
 *
 *   SECONDS MILLISECONDS POINT...
 *
 * The process ends after SECONDS at the latest. Rank 0 measures.
 */
#include <mpi.h>

#include "measure.h"

enum { DATA = 7, CONTROL = 8 };

static MPI_Request receives[MAX_WINDOW], sends[MAX_WINDOW];
static int peer;

static void start_receive(char *buffer, size_t size, unsigned slot)
{
	MPI_Irecv(buffer, (int)size, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &receives[slot]);
}

static void start_send(char *buffer, size_t size, unsigned slot)
{
	MPI_Isend(buffer, (int)size, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &sends[slot]);
}

static void await_receive(unsigned slot)
{
	MPI_Wait(&receives[slot], MPI_STATUS_IGNORE);
}

static void await_send(unsigned slot)
{
	MPI_Wait(&sends[slot], MPI_STATUS_IGNORE);
}

static void tell(uint64_t number)
{
	MPI_Send(&number, sizeof(number), MPI_BYTE, peer, CONTROL, MPI_COMM_WORLD);
}

static uint64_t hear(void)
{
	uint64_t number;

	MPI_Recv(&number, sizeof(number), MPI_BYTE, peer, CONTROL, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return number;
}

int main(int argc, char **argv)
{
	int rank, ranks;

	alarm(argc > 1 ? (unsigned)atoi(argv[1]) : 1);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 4 || ranks != 2)
		fail("two processes, and SECONDS MILLISECONDS POINT... are expected", argv[0]);
	peer = 1 - rank;
	if (rank == 0)
		client(argv + 3, argc - 3, atof(argv[2]) / 1e3);
	else
		server(argv + 3, argc - 3);
	MPI_Finalize();
	return 0;
}

/* An MPI process that sends messages to itself. See measure.h. */
#include <mpi.h>

#include "measure.h"

static MPI_Request *receives, *sends;
static char *buffers;

static void post(int tag)
{
	MPI_Irecv(buffers + PAYLOAD * (size_t)tag, PAYLOAD, MPI_BYTE, 0, tag, MPI_COMM_SELF,
		  &receives[tag]);
}

static void send_to_self(int tag)
{
	static char payload[PAYLOAD] = "payload";

	MPI_Isend(payload, PAYLOAD, MPI_BYTE, 0, tag, MPI_COMM_SELF, &sends[tag]);
}

/* MPICH completes a send to the own process when it has been received, and not before. */
static void wait_for_both(int tag)
{
	MPI_Wait(&receives[tag], MPI_STATUS_IGNORE);
	MPI_Wait(&sends[tag], MPI_STATUS_IGNORE);
}

static void round_of(const struct work *work, int tag)
{
	if (work->unexpected) {
		post(tag);
		wait_for_both(tag);
		send_to_self(tag);
	} else {
		send_to_self(tag);
		wait_for_both(tag);
		post(tag);
	}
}

int main(int argc, char **argv)
{
	struct work work = work_from(argc, argv);

	buffers = calloc((size_t)work.depth, PAYLOAD);
	receives = calloc((size_t)work.depth, sizeof(*receives));
	sends = calloc((size_t)work.depth, sizeof(*sends));
	if (!buffers || !receives || !sends)
		return 1;
	MPI_Init(&argc, &argv);
	for (int tag = 0; tag < work.depth; tag++) {
		if (work.unexpected)
			send_to_self(tag);
		else
			post(tag);
	}
	measure(&work);
	/* What waits is left to the end of the process: cancelling it can take longer than all
	 * else. */
	fflush(stdout);
	_Exit(0);
}

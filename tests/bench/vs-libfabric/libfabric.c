/* A ping-pong of tagged messages of 8 bytes on libfabric's EFA provider; see src/main.rs for its steps and
 * its arguments.
 */
#include "../tagged.h"

/* libfabric's EFA provider always opens the shm provider, which leaves 16 MiB in /dev/shm unless it is
 * closed.
 */
static void close_all(void)
{
	check(fi_close(&ep->fid), "fi_close of the endpoint");
	check(fi_close(&cq->fid), "fi_close of the queue");
	check(fi_close(&av->fid), "fi_close of the addresses");
	check(fi_close(&domain->fid), "fi_close of the domain");
	check(fi_close(&fabric->fid), "fi_close of the fabric");
}

static void post(uint64_t *buffer, struct fi_context *context)
{
	ssize_t code;

	do {
		calls++;
		code = fi_trecv(ep, buffer, sizeof(*buffer), NULL, FI_ADDR_UNSPEC, TAG, 0, context);
	} while (code == -FI_EAGAIN);
	check(code, "fi_trecv");
}

static void await_message(const uint64_t *buffer, uint64_t round)
{
	struct fi_cq_tagged_entry entry;
	ssize_t count;

	do {
		calls++;
		count = fi_cq_read(cq, &entry, 1);
	} while (count == -FI_EAGAIN);
	check(count, "fi_cq_read");
	if (*buffer != round) {
		fprintf(stderr, "round %lu brought %lu\n", (unsigned long)round,
			(unsigned long)*buffer);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static uint64_t buffer;
	static struct fi_context context;
	struct fi_cq_tagged_entry entry;
	uint64_t round, rounds;

	if (argc != 4) {
		fprintf(stderr, "client|server DIR ROUNDS are expected\n");
		return 1;
	}
	rounds = strtoull(argv[3], NULL, 10);
	open_endpoint("efa", FI_THREAD_UNSPEC);
	if (!strcmp(argv[1], "client")) {
		meet(argv[2], "client", "server");
		for (round = 0; round < rounds; round++) {
			post(&buffer, &context);
			inject(round);
			await_message(&buffer, round);
		}
	} else {
		meet(argv[2], "server", "client");
		for (round = 0; round < rounds; round++) {
			post(&buffer, &context);
			await_message(&buffer, round);
			inject(round);
		}
		for (round = 0; round < LAST_READS; round++)
			fi_cq_read(cq, &entry, 1);
	}
	printf("calls %lu\n", (unsigned long)calls);
	close_all();
	return 0;
}

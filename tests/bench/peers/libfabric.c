/* Messages between two processes by a provider of libfabric. Arguments:
 *
 *   client|server DIRECTORY SECONDS MILLISECONDS PROVIDER POINT...
 *
 * Both sides write their address into the directory. The process ends after SECONDS at the latest.
 */
#include <stdbool.h>

#include "../tagged.h"
#include "measure.h"

/* INJECT: the most bytes of a message that has no completion at the sender, as in src/ours.rs. */
enum { CONTROL = TAG + 1, INJECT = 1024 };

/* What the context of an operation points to. */
struct operation {
	struct fi_context context;
	bool is_done;
};

static struct operation receives[MAX_WINDOW], sends[MAX_WINDOW], told, heard;

static void progress(void)
{
	struct fi_cq_tagged_entry entries[16];
	ssize_t count = fi_cq_read(cq, entries, 16);

	if (count == -FI_EAGAIN)
		return;
	if (count == -FI_EAVAIL) {
		struct fi_cq_err_entry error = { 0 };

		fi_cq_readerr(cq, &error, 0);
		check(-error.err, "a completion");
	}
	check(count, "fi_cq_read");
	for (ssize_t n = 0; n < count; n++)
		((struct operation *)entries[n].op_context)->is_done = true;
}

static void await(const volatile struct operation *operation)
{
	while (!operation->is_done)
		progress();
}

static void post(void *buffer, size_t size, uint64_t tag, struct operation *operation)
{
	ssize_t code;

	operation->is_done = false;
	while ((code = fi_trecv(ep, buffer, size, NULL, FI_ADDR_UNSPEC, tag, 0,
				&operation->context)) == -FI_EAGAIN)
		progress();
	check(code, "fi_trecv");
}

static void send_tagged(const void *buffer, size_t size, uint64_t tag, struct operation *operation)
{
	ssize_t code;

	operation->is_done = false;
	while ((code = fi_tsend(ep, buffer, size, NULL, peer, tag, &operation->context)) ==
	       -FI_EAGAIN)
		progress();
	check(code, "fi_tsend");
}

static void start_receive(char *buffer, size_t size, unsigned slot)
{
	post(buffer, size, TAG, &receives[slot]);
}

static void start_send(char *buffer, size_t size, unsigned slot)
{
	ssize_t code;

	if (size <= INJECT && size <= inject_size) {
		sends[slot].is_done = true;
		while ((code = fi_tinject(ep, buffer, size, peer, TAG)) == -FI_EAGAIN)
			progress();
		check(code, "fi_tinject");
		return;
	}
	send_tagged(buffer, size, TAG, &sends[slot]);
}

static void await_receive(unsigned slot)
{
	await(&receives[slot]);
}

static void await_send(unsigned slot)
{
	await(&sends[slot]);
}

static void tell(uint64_t number)
{
	send_tagged(&number, sizeof(number), CONTROL, &told);
	await(&told);
}

static uint64_t hear(void)
{
	uint64_t number;

	post(&number, sizeof(number), CONTROL, &heard);
	await(&heard);
	return number;
}

int main(int argc, char **argv)
{
	bool is_client;

	if (argc < 7) {
		fprintf(stderr, "client|server DIRECTORY SECONDS MILLISECONDS PROVIDER POINT...\n");
		return 1;
	}
	is_client = !strcmp(argv[1], "client");
	alarm((unsigned)atoi(argv[3]));
	open_endpoint(argv[5], FI_THREAD_DOMAIN);
	meet(argv[2], argv[1], is_client ? "server" : "client");
	if (is_client)
		client(argv + 6, argc - 6, atof(argv[4]) / 1e3);
	else
		server(argv + 6, argc - 6);
	for (int round = 0; round < LAST_READS; round++)
		fi_cq_read(cq, NULL, 0);
	/* Closed, so that the shm provider leaves no file. */
	fi_close(&ep->fid);
	fi_close(&cq->fid);
	fi_close(&av->fid);
	fi_close(&domain->fid);
	fi_close(&fabric->fid);
	return 0;
}

/* A program of its own, since it counts what anything in the process allocates: once everything has been done for some
 * rounds, further rounds of sends, receives, injected messages and writes, and reads allocate nothing.
 */
#include "../c/program.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static unsigned long allocations;

void *malloc(size_t size)
{
	allocations++;
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	allocations++;
	return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	allocations++;
	return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	allocations++;
	return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	allocations++;
	*memory = __libc_memalign(alignment, size);
	return *memory ? 0 : ENOMEM;
}

enum { LAPS = 50, LAP = 100, WARM = 6000, SIZE = 64, TAG = 9 };

static struct world world;
static struct region region;
static char out[SIZE], in[4][SIZE], target[SIZE];

/* Posts the receives of a round, and what is received by them. */
static void post_and_send(void)
{
	struct side *from = &world.side[0], *at = &world.side[1];
	fi_addr_t to = from->to[1];
	struct iovec piece = { out, SIZE };
	struct fi_msg_tagged injected = {
		.msg_iov = &piece, .iov_count = 1, .addr = to, .tag = TAG, .context = CONTEXT(1),
	};
	struct fi_rma_iov remote = { region.address, SIZE, region.key };
	struct fi_msg_rma write = {
		.msg_iov = &piece, .iov_count = 1, .addr = to, .rma_iov = &remote, .rma_iov_count = 1, .context = CONTEXT(2),
	};

	for (size_t i = 0; i < 3; i++)
		POST(&world, fi_trecv(at->ep, in[i], SIZE, NULL, FI_ADDR_UNSPEC, TAG, 0, CONTEXT(10 + i)));
	POST(&world, fi_recv(at->ep, in[3], SIZE, NULL, FI_ADDR_UNSPEC, CONTEXT(13)));
	POST(&world, fi_tsend(from->ep, out, SIZE, NULL, to, TAG, CONTEXT(0)));
	POST(&world, fi_tinject(from->ep, out, SIZE, to, TAG));
	POST(&world, fi_tsendmsg(from->ep, &injected, FI_INJECT | FI_COMPLETION));
	POST(&world, fi_inject(from->ep, out, SIZE, to));
	POST(&world, fi_inject_write(from->ep, out, SIZE, to, region.address, region.key));
	POST(&world, fi_writemsg(from->ep, &write, FI_INJECT | FI_COMPLETION));
}

/* Reads until all of a round has completed: a send, an injected one and a write; four receives. */
static void take_all(void)
{
	struct fi_cq_tagged_entry entries[8];
	size_t sent = 0, received = 0;
	double end = now() + PATIENCE;

	while (sent < 3 || received < 4) {
		ssize_t count = fi_cq_read(world.side[0].tx, entries, 8);

		CHECK(count > 0 || count == -FI_EAGAIN);
		sent += count > 0 ? (size_t)count : 0;
		count = fi_cq_read(world.side[1].rx, entries, 8);
		CHECK(count > 0 || count == -FI_EAGAIN);
		received += count > 0 ? (size_t)count : 0;
		CHECK(now() < end);
	}
	EQUAL(sent, 3);
	EQUAL(received, 4);
}

static void rounds(unsigned count)
{
	while (count--) {
		post_and_send();
		take_all();
	}
}

int main(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
	unsigned long before;
	unsigned allocating = 0;
	double begun;

	open_world(&world, &options);
	region = register_of(&world, &world.side[1], target, SIZE, FI_REMOTE_WRITE | FI_REMOTE_READ);
	fill(out, SIZE, 1);
	rounds(WARM);
	CHECK(allocations > 0);
	/* Once a second the device looks whether quiet peers live, for which it opens files. */
	begun = now();
	for (unsigned lap = 0; lap < LAPS; lap++) {
		before = allocations;
		rounds(LAP);
		allocating += allocations > before;
	}
	CHECK(allocating <= 2 * (unsigned)(now() - begun + 1));
	FILLED(in[3], SIZE, 1);
	return 0;
}

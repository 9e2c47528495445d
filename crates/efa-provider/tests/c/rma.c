/* Writes and reads of a peer's memory in all call forms. */
#include "program.h"

#include <sys/uio.h>

enum { LARGEST = 2000000, DATA = 0x55443322 };

static const size_t sizes[] = { 1, 8, 32, 1000, 8192, 100000, LARGEST };

enum form { WRITE, WRITEV, WRITEMSG, INJECT, WRITEDATA, INJECTDATA, WRITEMSG_DATA, READ, READV, READMSG, FORMS };

static const char *const names[FORMS] = {
	"write", "writev", "writemsg", "inject_write", "writedata", "inject_writedata", "writemsg with data", "read", "readv",
	"readmsg",
};

static ssize_t start(enum form form, struct side *from, char *bytes, size_t length, struct region *region, uint64_t at)
{
	struct iovec pieces[2] = { { bytes, length / 3 }, { bytes + length / 3, length - length / 3 } };
	struct fi_rma_iov target[1] = { { .addr = at, .len = length, .key = region->key } };
	fi_addr_t to = from->to[1];
	void *context = CONTEXT(form);
	struct fi_msg_rma message = {
		.msg_iov = pieces, .iov_count = 2, .addr = to, .rma_iov = target, .rma_iov_count = 1, .context = context,
		.data = DATA,
	};

	switch (form) {
	case WRITE:
		return fi_write(from->ep, bytes, length, NULL, to, at, region->key, context);
	case WRITEV:
		return fi_writev(from->ep, pieces, NULL, 2, to, at, region->key, context);
	case WRITEMSG:
		return fi_writemsg(from->ep, &message, 0);
	case INJECT:
		return fi_inject_write(from->ep, bytes, length, to, at, region->key);
	case WRITEDATA:
		return fi_writedata(from->ep, bytes, length, NULL, DATA, to, at, region->key, context);
	case INJECTDATA:
		return fi_inject_writedata(from->ep, bytes, length, DATA, to, at, region->key);
	case WRITEMSG_DATA:
		return fi_writemsg(from->ep, &message, FI_REMOTE_CQ_DATA);
	case READ:
		return fi_read(from->ep, bytes, length, NULL, to, at, region->key, context);
	case READV:
		return fi_readv(from->ep, pieces, NULL, 2, to, at, region->key, context);
	default:
		return fi_readmsg(from->ep, &message, 0);
	}
}

static void forms(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char local[LARGEST], memory[LARGEST + 64], dummy[8];
	struct region region;

	open_world(&world, &options);
	region = register_of(&world, at, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE);
	/* Data may take a receive. */
	if (world.info->mode & FI_RX_CQ_DATA)
		for (int i = 0; i < 64; i++)
			POST(&world, fi_recv(at->ep, dummy, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(60)));
	for (size_t i = 0; i < COUNT(sizes); i++)
		for (int form = 0; form < FORMS; form++) {
			bool read = form >= READ, injected = form == INJECT || form == INJECTDATA;
			bool data = form == WRITEDATA || form == INJECTDATA || form == WRITEMSG_DATA;
			size_t length = sizes[i];
			unsigned seed = (unsigned)(form + 20);

			if (injected && length > world.info->tx_attr->inject_size)
				continue;
			memset(memory, 0xee, length + 64);
			memset(local, 0x11, length);
			fill(read ? memory + 32 : local, length, seed);
			POST(&world, start(form, from, local, length, &region, region.address + 32));
			if (injected)
				memset(local, 0, length);
			else
				DONE(&world, from->tx, CONTEXT(form), FI_RMA | (uint64_t)(read ? FI_READ : FI_WRITE));
			if (data) {
				struct done done = TAKE(&world, at->rx);

				KIND(done.entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
				EQUAL(done.entry.data, DATA);
				if (is_ours())
					EQUAL(done.entry.len, length);
			} else if (!read) {
				/* What a later read of the peer returns was written before. */
				char check[64];
				size_t part = length < 64 ? length : 64;

				POST(&world, fi_read(from->ep, check, part, NULL, from->to[1], region.address + 32 + length - part,
					region.key, CONTEXT(30)));
				DONE(&world, from->tx, CONTEXT(30), FI_RMA | FI_READ);
			}
			for (double end = now() + PATIENCE; injected && (unsigned char)memory[31 + length] == 0xee && now() < end; )
				progress(&world);
			check_filled_at(names[form], (int)length, read ? local : memory + 32, length, seed);
			for (size_t k = 0; k < 32; k++) {
				EQUAL((unsigned char)memory[k], 0xee);
				EQUAL((unsigned char)memory[32 + length + k], 0xee);
			}
		}
	EMPTY(&world, from->tx);
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* A transfer of two pieces there. */
static void pieces_there(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char local[1000], memory[2][600];
	struct region region[2];
	struct iovec piece = { local, sizeof(local) };
	struct fi_rma_iov target[2];
	struct fi_msg_rma message = {
		.msg_iov = &piece, .iov_count = 1, .rma_iov = target, .rma_iov_count = 2, .context = CONTEXT(1),
	};

	open_world(&world, &options);
	if (world.info->tx_attr->rma_iov_limit < 2)
		not_offered("pieces of the peer's memory");
	for (int i = 0; i < 2; i++) {
		region[i] = register_of(&world, at, memory[i], 600, FI_REMOTE_READ | FI_REMOTE_WRITE);
		target[i] = (struct fi_rma_iov){ .addr = region[i].address, .len = 500, .key = region[i].key };
	}
	message.addr = from->to[1];
	fill(local, sizeof(local), 1);
	POST(&world, fi_writemsg(from->ep, &message, FI_DELIVERY_COMPLETE));
	DONE(&world, from->tx, CONTEXT(1), FI_RMA | FI_WRITE);
	SAME_BYTES(memory[0], local, 500);
	SAME_BYTES(memory[1], local + 500, 500);
	memset(local, 0, sizeof(local));
	POST(&world, fi_readmsg(from->ep, &message, 0));
	DONE(&world, from->tx, CONTEXT(1), FI_RMA | FI_READ);
	FILLED(local, sizeof(local), 1);
	for (int i = 0; i < 2; i++)
		OK(fi_close(&region[i].mr->fid));
	close_world(&world);
}

/* Delivery complete: the bytes are there when the write completes. */
static void delivered(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA, .tx_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char local[100000], memory[100000];
	struct region region;

	open_world(&world, &options);
	region = register_of(&world, at, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (unsigned round = 0; round < 50; round++)
		for (size_t length = 10; length <= sizeof(local); length *= 100) {
			fill(local, length, round);
			POST(&world, fi_write(from->ep, local, length, NULL, from->to[1], region.address, region.key, CONTEXT(1)));
			DONE(&world, from->tx, CONTEXT(1), FI_RMA | FI_WRITE);
			FILLED(memory, length, round);
		}
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* Counters of an endpoint count its own writes and reads. */
static void counted(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA, .counters = true, .wait = FI_WAIT_UNSPEC };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char local[64], memory[64];
	struct region region;

	open_world(&world, &options);
	region = register_of(&world, at, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE);
	POST(&world, fi_write(from->ep, local, 64, NULL, from->to[1], region.address, region.key, CONTEXT(1)));
	DONE(&world, from->tx, CONTEXT(1), FI_RMA | FI_WRITE);
	POST(&world, fi_inject_write(from->ep, local, 8, from->to[1], region.address, region.key));
	POST(&world, fi_read(from->ep, local, 64, NULL, from->to[1], region.address, region.key, CONTEXT(2)));
	DONE(&world, from->tx, CONTEXT(2), FI_RMA | FI_READ);
	for (double end = now() + PATIENCE; fi_cntr_read(from->sent) < 3 && now() < end; )
		progress(&world);
	EQUAL(fi_cntr_read(from->sent), 3);
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* The first write to a peer, and a message after it: the bytes are there when the message is. */
static void before_message(void)
{
	for (int injected = 0; injected < 2; injected++) {
		struct options options = { .caps = FI_MSG | FI_RMA };
		struct world world;
		struct side *from = &world.side[0], *at = &world.side[1];
		static char local[32], memory[32], received[8];
		struct region region;

		open_world(&world, &options);
		region = register_of(&world, at, memory, sizeof(memory), FI_REMOTE_WRITE);
		memset(memory, 0, sizeof(memory));
		fill(local, sizeof(local), 1);
		POST(&world, fi_recv(at->ep, received, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
		POST(&world, start(injected ? INJECT : WRITE, from, local, sizeof(local), &region, region.address));
		POST(&world, fi_send(from->ep, local, 8, NULL, from->to[1], CONTEXT(2)));
		DONE(&world, at->rx, CONTEXT(1), FI_MSG | FI_RECV);
		FILLED(memory, sizeof(memory), 1);
		OK(fi_close(&region.mr->fid));
		close_world(&world);
	}
}

const struct program rma[] = {
	{ "rma-forms", forms },
	{ "rma-pieces-there", pieces_there },
	{ "rma-delivered", delivered },
	{ "rma-counted", counted },
	{ "rma-before-message", before_message },
	{ NULL, NULL },
};

/* What completions say in each format, when operations complete, which do, and counters. */
#include "program.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/uio.h>

static const size_t entry_size[] = {
	[FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
	[FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),
	[FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
	[FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry),
};

/* Two entries read at once have exactly their format's size. */
static void formats(void)
{
	for (enum fi_cq_format format = FI_CQ_FORMAT_CONTEXT; format <= FI_CQ_FORMAT_TAGGED; format++) {
		struct options options = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE, .format = format };
		struct world world;
		struct side *from = &world.side[0], *at = &world.side[1];
		size_t size = entry_size[format];
		unsigned char room[4 * sizeof(struct fi_cq_tagged_entry)];
		char here[2][16];
		fi_addr_t source[3] = { 0, 0, 12345 };
		int count = 0;
		double end = now() + PATIENCE;

		open_world(&world, &options);
		memset(room, 0xee, sizeof(room));
		for (int i = 0; i < 2; i++) {
			POST(&world, fi_trecv(at->ep, here[i], 16, NULL, FI_ADDR_UNSPEC, 0x50 + (uint64_t)i, 0, CONTEXT(i)));
			POST(&world, fi_tinjectdata(from->ep, "1234567", (size_t)(5 + i), 0x99 + (uint64_t)i, from->to[1],
				0x50 + (uint64_t)i));
		}
		while (count < 2) {
			ssize_t more = fi_cq_readfrom(at->rx, room + (size_t)count * size, (size_t)(2 - count), source + count);

			if (more > 0)
				count += (int)more;
			else
				FAILS(more, FI_EAGAIN);
			progress(&world);
			CHECK(now() < end);
		}
		for (int i = 0; i < 2; i++) {
			struct fi_cq_tagged_entry entry;

			memcpy(&entry, room + (size_t)i * size, size);
			EQUAL((uintptr_t)entry.op_context, (uintptr_t)CONTEXT(i));
			EQUAL(source[i], at->to[0]);
			if (format == FI_CQ_FORMAT_CONTEXT)
				continue;
			KIND(entry.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
			EQUAL(entry.len, 5 + i);
			if (format == FI_CQ_FORMAT_MSG)
				continue;
			EQUAL(entry.data, 0x99 + i);
			if (format == FI_CQ_FORMAT_DATA)
				continue;
			EQUAL(entry.tag, 0x50 + i);
		}
		for (size_t i = 2 * size; i < sizeof(room); i++)
			EQUAL(room[i], 0xee);
		EQUAL(source[2], 12345);
		close_world(&world);
	}
}

/* Without a format a queue has the smallest entries: the program may have room for no more. */
static void unspecified_format(void)
{
	struct options options = { .sides = 1 };
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_UNSPEC };
	struct world world;
	struct side *from = &world.side[0], at = { .name_length = sizeof(at.name) };
	unsigned char room[2 * sizeof(struct fi_cq_tagged_entry)];
	struct fi_cq_entry entry;
	char here[8];

	open_world(&world, &options);
	OK(fi_cq_open(world.domain, &attr, &at.rx, NULL));
	if (is_ours())
		EQUAL(attr.format, FI_CQ_FORMAT_CONTEXT);
	OK(fi_endpoint(world.domain, world.info, &at.ep, NULL));
	OK(fi_ep_bind(at.ep, &from->av->fid, 0));
	OK(fi_ep_bind(at.ep, &from->tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(at.ep, &at.rx->fid, FI_RECV));
	OK(fi_enable(at.ep));
	OK(fi_getname(&at.ep->fid, at.name, &at.name_length));
	from->to[1] = introduce(from, &at);
	memset(room, 0xee, sizeof(room));
	POST(&world, fi_recv(at.ep, here, sizeof(here), NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
	POST(&world, fi_send(from->ep, "abc", 3, NULL, from->to[1], CONTEXT(2)));
	EQUAL(RETRIED(&world, fi_cq_read(at.rx, room, 1)), 1);
	memcpy(&entry, room, sizeof(entry));
	EQUAL((uintptr_t)entry.op_context, (uintptr_t)CONTEXT(1));
	for (size_t i = sizeof(entry); i < sizeof(room); i++)
		EQUAL(room[i], 0xee);
	OK(fi_close(&at.ep->fid));
	OK(fi_close(&at.rx->fid));
	close_world(&world);
}

/* One queue for both directions. */
static void one_queue(void)
{
	struct options options = { .shared_cq = true };
	struct world world;
	struct side *side = &world.side[0];
	char here[8];
	int seen = 0;

	open_world(&world, &options);
	POST(&world, fi_recv(side->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(0)));
	POST(&world, fi_send(side->ep, "abc", 3, NULL, side->to[0], CONTEXT(1)));
	for (int i = 0; i < 2; i++) {
		struct done done = TAKE(&world, side->tx);
		int number = done.entry.op_context == CONTEXT(1);

		KIND(done.entry.flags, FI_MSG | (number ? FI_SEND : FI_RECV));
		seen |= 1 << number;
	}
	EQUAL(seen, 3);
	close_world(&world);
}

static ssize_t send_flags(struct side *from, int to, const char *bytes, size_t length, void *context, uint64_t flags)
{
	struct iovec piece = { (void *)bytes, length };
	struct fi_msg message = { .msg_iov = &piece, .iov_count = 1, .addr = from->to[to], .context = context };

	return fi_sendmsg(from->ep, &message, flags);
}

/* Only operations that ask for it complete; failures always do. */
static void selective(void)
{
	struct options options = { .bind_tx = FI_SELECTIVE_COMPLETION, .bind_rx = FI_SELECTIVE_COMPLETION };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	char here[4][8];
	struct fi_cq_err_entry error;

	open_world(&world, &options);
	for (int i = 0; i < 4; i++) {
		struct iovec piece = { here[i], 8 };
		struct fi_msg message = {
			.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(i),
		};

		if (i == 1)
			POST(&world, fi_recv(at->ep, here[i], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
		else
			POST(&world, fi_recvmsg(at->ep, &message, i == 3 ? FI_COMPLETION : 0));
	}
	POST(&world, send_flags(from, 1, "a", 1, CONTEXT(10), 0));
	POST(&world, fi_send(from->ep, "b", 1, NULL, from->to[1], CONTEXT(11)));
	POST(&world, fi_inject(from->ep, "c", 1, from->to[1]));
	POST(&world, send_flags(from, 1, "d", 1, CONTEXT(13), FI_COMPLETION));
	DONE(&world, from->tx, CONTEXT(13), FI_SEND | FI_MSG);
	DONE(&world, at->rx, CONTEXT(3), FI_RECV | FI_MSG);
	for (int i = 0; i < 4; i++)
		EQUAL(here[i][0], 'a' + i);
	POST(&world, fi_recv(at->ep, here[0], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(5)));
	EQUAL(fi_cancel(&at->ep->fid, CONTEXT(5)), 0);
	error = TAKE_ERROR(&world, at->rx);
	EQUAL(error.err, FI_ECANCELED);
	EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(5));
	EMPTY(&world, from->tx);
	EMPTY(&world, at->rx);
	close_world(&world);
}

/* op_flags FI_COMPLETION: calls without flags complete, calls with flags of their own only if these say so. */
static void default_flags(void)
{
	struct options options = {
		.tx_flags = FI_COMPLETION, .rx_flags = FI_COMPLETION, .bind_tx = FI_SELECTIVE_COMPLETION,
		.bind_rx = FI_SELECTIVE_COMPLETION,
	};
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	char here[2][8];

	open_world(&world, &options);
	for (int i = 0; i < 2; i++)
		POST(&world, fi_recv(at->ep, here[i], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	POST(&world, send_flags(from, 1, "a", 1, CONTEXT(10), 0));
	POST(&world, fi_send(from->ep, "b", 1, NULL, from->to[1], CONTEXT(11)));
	DONE(&world, from->tx, CONTEXT(11), FI_SEND | FI_MSG);
	DONE(&world, at->rx, CONTEXT(0), FI_RECV | FI_MSG);
	DONE(&world, at->rx, CONTEXT(1), FI_RECV | FI_MSG);
	EMPTY(&world, from->tx);
	if (is_ours())
		for (int i = 0; i < 2; i++) {
			struct iovec piece = { here[i], 8 };
			struct fi_msg message = {
				.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(2 + i),
			};

			POST(&world, fi_recvmsg(at->ep, &message, i ? FI_COMPLETION : 0));
			POST(&world, fi_inject(from->ep, "c", 1, from->to[1]));
		}
	if (is_ours())
		DONE(&world, at->rx, CONTEXT(3), FI_RECV | FI_MSG);
	EMPTY(&world, at->rx);
	close_world(&world);
}

/* Messages in a buffer for many complete as those of other receives; its release always does. */
static void many_selectively(void)
{
	enum { LENGTH = 128, ROOM = 512 };
	struct options options = { .caps = FI_MSG | FI_MULTI_RECV, .bind_rx = FI_SELECTIVE_COMPLETION };
	static char here[ROOM], there[LENGTH];

	for (int by_default = 0; by_default < 2; by_default++)
		for (int told = 0; told < 2; told++) {
			struct iovec piece = { here, ROOM };
			struct fi_msg message = {
				.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(1),
			};
			struct world world;
			struct side *from = &world.side[0], *at = &world.side[1];
			size_t least = 64;

			options.rx_flags = by_default ? FI_MULTI_RECV | (told ? FI_COMPLETION : 0) : 0;
			open_world(&world, &options);
			OK(fi_setopt(&at->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
			POST(&world, by_default ? fi_recv(at->ep, here, ROOM, NULL, FI_ADDR_UNSPEC, CONTEXT(1))
				: fi_recvmsg(at->ep, &message, FI_MULTI_RECV | (told ? FI_COMPLETION : 0)));
			for (int i = 0; i < ROOM / LENGTH; i++) {
				fill(there, LENGTH, (unsigned)i);
				POST(&world, fi_send(from->ep, there, LENGTH, NULL, from->to[1], CONTEXT(2)));
				DONE(&world, from->tx, CONTEXT(2), FI_SEND | FI_MSG);
				if (told)
					DONE(&world, at->rx, CONTEXT(1), FI_RECV | FI_MSG);
			}
			DONE(&world, at->rx, CONTEXT(1), FI_MULTI_RECV);
			EMPTY(&world, at->rx);
			for (int i = 0; i < ROOM / LENGTH; i++)
				FILLED(here + i * LENGTH, LENGTH, (unsigned)i);
			close_world(&world);
		}
}

/* A delivered message was received; the others complete before. */
static void levels(void)
{
	struct options options = { 0 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	const uint64_t flags[] = { FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE };
	static char there[100000], here[100000];

	for (size_t i = 0; i < COUNT(flags); i++) {
		/* By the call's flags, and by the endpoint's. */
		for (int own = 0; own < 2; own++) {
			options.tx_flags = own ? FI_COMPLETION | flags[i] : 0;
			options.caps = FI_MSG | FI_TAGGED;
			open_world(&world, &options);
			for (size_t length = 10; length <= sizeof(there); length *= 100) {
				bool delivered = flags[i] == FI_DELIVERY_COMPLETE;
				double end = now() + PATIENCE;
				bool received = false, sent = false;

				fill(there, length, (unsigned)length);
				if (own)
					POST(&world, fi_send(from->ep, there, length, NULL, from->to[1], CONTEXT(0)));
				else
					POST(&world, send_flags(from, 1, there, length, CONTEXT(0), FI_COMPLETION | flags[i]));
				if (delivered)
					EMPTY(&world, from->tx);
				else if (length == 10) {
					DONE(&world, from->tx, CONTEXT(0), FI_SEND | FI_MSG);
					sent = true;
				}
				POST(&world, fi_recv(at->ep, here, length, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
				while (!received || !sent) {
					struct fi_cq_tagged_entry entry;

					if (fi_cq_read(from->tx, &entry, 1) == 1) {
						EQUAL((uintptr_t)entry.op_context, (uintptr_t)CONTEXT(0));
						sent = true;
						if (delivered)
							FILLED(here, length, (unsigned)length);
					}
					if (fi_cq_read(at->rx, &entry, 1) == 1)
						received = true;
					CHECK(now() < end);
				}
				FILLED(here, length, (unsigned)length);
			}
			close_world(&world);
		}
	}
}

static void *add_error_later(void *counter)
{
	usleep(100 * 1000);
	OK(fi_cntr_adderr(counter, 1));
	return NULL;
}

/* Counters count what completes, can be set, and are waited for. */
static void counters(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED, .counters = true };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	char here[3][8];
	double before;

	options.wait = FI_WAIT_UNSPEC;
	open_world(&world, &options);
	EQUAL(fi_cntr_read(from->sent), 0);
	for (int i = 0; i < 3; i++)
		POST(&world, fi_recv(at->ep, here[i], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	before = now();
	FAILS(fi_cntr_wait(at->received, 1, 100), FI_ETIMEDOUT);
	CHECK(now() - before >= 0.09);
	POST(&world, fi_send(from->ep, "a", 1, NULL, from->to[1], CONTEXT(4)));
	POST(&world, fi_inject(from->ep, "b", 1, from->to[1]));
	/* The sender's counter may need the receiver to work. */
	for (double end = now() + PATIENCE; fi_cntr_read(from->sent) < 2 && now() < end; )
		progress(&world);
	OK(fi_cntr_wait(from->sent, 2, 0));
	OK(fi_cntr_wait(at->received, 2, (int)(PATIENCE * 1000)));
	EQUAL(fi_cntr_read(from->sent), 2);
	EQUAL(fi_cntr_read(at->received), 2);
	OK(fi_cntr_wait(at->received, 1, 0));
	OK(fi_cntr_add(from->sent, 5));
	EQUAL(fi_cntr_read(from->sent), 7);
	OK(fi_cntr_set(from->sent, 100));
	EQUAL(fi_cntr_read(from->sent), 100);
	EQUAL(fi_cntr_readerr(from->sent), 0);
	OK(fi_cntr_adderr(from->sent, 3));
	EQUAL(fi_cntr_readerr(from->sent), 3);
	OK(fi_cntr_seterr(from->sent, 0));
	EQUAL(fi_cntr_readerr(from->sent), 0);
	/* A failure is counted apart, and ends a wait. */
	EQUAL(fi_cancel(&at->ep->fid, CONTEXT(2)), 0);
	EQUAL(TAKE(&world, at->rx).entry.len, 1);
	EQUAL(TAKE(&world, at->rx).entry.len, 1);
	EQUAL(TAKE_ERROR(&world, at->rx).err, FI_ECANCELED);
	if (is_ours()) {
		pthread_t thread;

		EQUAL(fi_cntr_readerr(at->received), 1);
		OK(pthread_create(&thread, NULL, add_error_later, at->received));
		FAILS(fi_cntr_wait(at->received, 50, (int)(PATIENCE * 1000)), FI_EAVAIL);
		OK(pthread_join(thread, NULL));
	}
	close_world(&world);
}

/* A program that waits by counters finds a failure by fi_cq_readerr, without a read before. */
static void failure_behind_counter(void)
{
	struct options options = { .counters = true, .bind_rx = FI_SELECTIVE_COMPLETION };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	struct fi_cq_err_entry error = { 0 };
	char here[8];

	open_world(&world, &options);
	POST(&world, fi_recv(at->ep, here, 1, NULL, FI_ADDR_UNSPEC, CONTEXT(0)));
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
	for (int i = 0; i < 2; i++)
		POST(&world, fi_send(from->ep, "12345678", 8, NULL, from->to[1], CONTEXT(2 + i)));
	for (double end = now() + PATIENCE; fi_cntr_readerr(at->received) < 1 && now() < end; )
		progress(&world);
	EQUAL(fi_cntr_readerr(at->received), 1);
	EQUAL(fi_cq_readerr(at->rx, &error, 0), 1);
	EQUAL(error.err, FI_ETRUNC);
	EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(0));
	FAILS(fi_cq_readerr(at->rx, &error, 0), FI_EAGAIN);
	/* A success that it meets is still there. */
	if (is_ours())
		FAILS(fi_cq_readerr(from->tx, &error, 0), FI_EAGAIN);
	DONE(&world, from->tx, CONTEXT(2), FI_SEND | FI_MSG);
	DONE(&world, from->tx, CONTEXT(3), FI_SEND | FI_MSG);
	close_world(&world);
}

/* A queue that nobody waits for takes any condition for that. */
static void condition_of_nobody(void)
{
	struct options options = { 0 };
	struct fi_cq_attr attr = { .wait_obj = FI_WAIT_NONE, .wait_cond = (enum fi_cq_wait_cond)99 };
	struct world world;
	struct fid_cq *queue;

	open_world(&world, &options);
	OK(fi_cq_open(world.domain, &attr, &queue, NULL));
	OK(fi_close(&queue->fid));
	if (is_ours()) {
		attr.wait_obj = FI_WAIT_UNSPEC;
		FAILS(fi_cq_open(world.domain, &attr, &queue, NULL), FI_EINVAL);
	}
	close_world(&world);
}

static void *add_later(void *counter)
{
	usleep(100 * 1000);
	OK(fi_cntr_add(counter, 10));
	return NULL;
}

/* A thread that waits for a counter is woken by another's fi_cntr_add. */
static void counter_woken(void)
{
	struct options options = { .caps = FI_MSG, .counters = true, .wait = FI_WAIT_UNSPEC };
	struct world world;
	pthread_t thread;
	double before = now();

	open_world(&world, &options);
	OK(pthread_create(&thread, NULL, add_later, world.side[0].sent));
	OK(fi_cntr_wait(world.side[0].sent, 10, (int)(PATIENCE * 1000)));
	CHECK(now() - before < PATIENCE);
	OK(pthread_join(thread, NULL));
	close_world(&world);
}

/* A queue with no room refuses operations until it is read; nothing is lost. */
static void full_queue(void)
{
	enum { MESSAGES = 100 };
	struct options options = { .cq_size = 8 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	char here[MESSAGES];
	int sent = 0, done = 0, received = 0, posted = 0;
	double end = now() + PATIENCE;

	open_world(&world, &options);
	while (received < MESSAGES || done < MESSAGES) {
		struct fi_cq_tagged_entry entry;

		while (posted < MESSAGES) {
			ssize_t result = fi_recv(at->ep, here + posted, 1, NULL, FI_ADDR_UNSPEC, CONTEXT(0));

			if (result == -FI_EAGAIN)
				break;
			OK(result);
			posted++;
		}
		while (sent < MESSAGES) {
			char byte = (char)sent;
			ssize_t result = fi_send(from->ep, &byte, 1, NULL, from->to[1], CONTEXT(1));

			if (result == -FI_EAGAIN)
				break;
			OK(result);
			/* The byte is given up until it was sent. */
			sent++;
			DONE(&world, from->tx, CONTEXT(1), FI_SEND | FI_MSG);
			done++;
		}
		if (fi_cq_read(at->rx, &entry, 1) == 1)
			received++;
		CHECK(now() < end);
	}
	for (int i = 0; i < MESSAGES; i++)
		EQUAL(here[i], i);
	close_world(&world);
}

/* Text of failures, also of a provider's own numbers. */
static void failure_text(void)
{
	struct options options = { 0 };
	struct world world;
	struct side *at = &world.side[1];
	char here[8], text[64], short_text[4] = { 1, 1, 1, 1 };
	struct fi_cq_err_entry error;
	const char *said;

	open_world(&world, &options);
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(5)));
	EQUAL(fi_cancel(&at->ep->fid, CONTEXT(5)), 0);
	error = TAKE_ERROR(&world, at->rx);
	said = fi_cq_strerror(at->rx, error.prov_errno, error.err_data, text, sizeof(text));
	CHECK(said && *said);
	CHECK(memchr(text, 0, sizeof(text)));
	said = fi_cq_strerror(at->rx, error.prov_errno, error.err_data, short_text, 3);
	EQUAL(short_text[3], 1);
	CHECK(fi_cq_strerror(at->rx, error.prov_errno, error.err_data, NULL, 0));
	CHECK(fi_cq_strerror(at->rx, 999999, NULL, NULL, 0));
	/* No further failure. */
	FAILS(fi_cq_readerr(at->rx, &error, 0), FI_EAGAIN);
	close_world(&world);
}

/* A program that would lend context blocks, of a provider that asks for none: it keeps what it wrote there, and the
 * contexts may as well be addresses of nothing. */
static void context_blocks(void)
{
	struct options options = { .mode = FI_CONTEXT | FI_CONTEXT2 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *nothing = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static struct fi_context blocks[4], before[4];
	const size_t lengths[] = { 0, 8, 100000 };
	static char there[100000], here[100000];

	CHECK(nothing != MAP_FAILED);
	open_world(&world, &options);
	if (world.info->mode && !is_ours())
		not_offered("contexts without blocks");
	EQUAL(world.info->mode, 0);
	fill(blocks, sizeof(blocks), 3);
	memcpy(before, blocks, sizeof(blocks));
	for (size_t i = 0; i < COUNT(lengths); i++) {
		POST(&world, fi_trecv(at->ep, here, lengths[i], NULL, FI_ADDR_UNSPEC, 1, 0, &blocks[1]));
		SAME_BYTES(blocks, before, sizeof(blocks));
		POST(&world, fi_tsend(from->ep, there, lengths[i], NULL, from->to[1], 1, &blocks[2]));
		SAME_BYTES(blocks, before, sizeof(blocks));
		DONE(&world, at->rx, &blocks[1], FI_RECV | FI_TAGGED);
		DONE(&world, from->tx, &blocks[2], FI_SEND | FI_TAGGED);
		SAME_BYTES(blocks, before, sizeof(blocks));
		POST(&world, fi_trecv(at->ep, here, lengths[i], NULL, FI_ADDR_UNSPEC, 1, 0, nothing));
		POST(&world, fi_tsend(from->ep, there, lengths[i], NULL, from->to[1], 1, nothing + 8));
		DONE(&world, at->rx, nothing, FI_RECV | FI_TAGGED);
		DONE(&world, from->tx, nothing + 8, FI_SEND | FI_TAGGED);
		/* One that is cancelled. */
		POST(&world, fi_trecv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, 2, 0, &blocks[3]));
		OK(fi_cancel(&at->ep->fid, &blocks[3]));
		EQUAL((uintptr_t)TAKE_ERROR(&world, at->rx).op_context, (uintptr_t)&blocks[3]);
		SAME_BYTES(blocks, before, sizeof(blocks));
	}
	close_world(&world);
	OK(munmap(nothing, page));
}

const struct program completions[] = {
	{ "completions-context-blocks", context_blocks },
	{ "completions-formats", formats },
	{ "completions-unspecified-format", unspecified_format },
	{ "completions-one-queue", one_queue },
	{ "completions-selective", selective },
	{ "completions-default-flags", default_flags },
	{ "completions-many-selectively", many_selectively },
	{ "completions-levels", levels },
	{ "completions-counters", counters },
	{ "completions-failure-behind-counter", failure_behind_counter },
	{ "completions-condition-of-nobody", condition_of_nobody },
	{ "completions-counter-woken", counter_woken },
	{ "completions-full-queue", full_queue },
	{ "completions-failure-text", failure_text },
	{ NULL, NULL },
};

/* Which message a receive takes: sources, tags, multi-receive, cancel, peek, claim and discard. */
#include "program.h"

#include <sys/uio.h>

/* Completions of fi_cq_readfrom name the sender; one who isn't in the address vector is FI_ADDR_NOTAVAIL. */
static void sources(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE, .sides = 3 };
	struct world world;
	struct side *at = &world.side[2];
	char here[8];
	struct side stranger = { 0 };
	fi_addr_t to;

	open_world(&world, &options);
	for (int i = 0; i < 2; i++) {
		struct done done;

		POST(&world, fi_inject(world.side[i].ep, "a", 1, world.side[i].to[2]));
		POST(&world, fi_recv(at->ep, here, sizeof(here), NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
		done = TAKE(&world, at->rx);
		EQUAL(done.source, at->to[i]);
	}
	/* A send has no sender. */
	POST(&world, fi_recv(at->ep, here, sizeof(here), NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
	POST(&world, fi_send(world.side[0].ep, "c", 1, NULL, world.side[0].to[2], CONTEXT(4)));
	EQUAL(TAKE(&world, at->rx).source, at->to[0]);
	if (is_ours())
		EQUAL(TAKE(&world, world.side[0].tx).source, FI_ADDR_NOTAVAIL);
	open_side(&world, &stranger);
	to = introduce(&stranger, at);
	POST(&world, fi_recv(at->ep, here, sizeof(here), NULL, FI_ADDR_UNSPEC, CONTEXT(3)));
	POST(&world, fi_inject(stranger.ep, "b", 1, to));
	EQUAL(TAKE(&world, at->rx).source, FI_ADDR_NOTAVAIL);
	close_side(&stranger);
	close_world(&world);
}

/* A receive of one source takes no other's message, plain or tagged, whether the message is there before or not. */
static void directed(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE, .sides = 3 };
	struct world world;
	struct side *at = &world.side[2];

	open_world(&world, &options);
	for (int early = 0; early < 2; early++)
		for (int tagged = 0; tagged < 2; tagged++) {
			char here[2][8];

			for (int step = 0; step < 2; step++)
				if (step == early) {
					/* Side 0 sends first. */
					for (int i = 0; i < 2; i++) {
						struct side *from = &world.side[i];
						char byte = (char)('a' + i);

						POST(&world, tagged ? fi_tinject(from->ep, &byte, 1, from->to[2], 7)
							: fi_inject(from->ep, &byte, 1, from->to[2]));
						for (int k = 0; k < 1000; k++)
							progress(&world);
					}
				} else {
					/* The receive of side 1's message is posted first. */
					for (int i = 1; i >= 0; i--)
						POST(&world, tagged ? fi_trecv(at->ep, here[i], 8, NULL, at->to[i], 7, 0, CONTEXT(i))
							: fi_recv(at->ep, here[i], 8, NULL, at->to[i], CONTEXT(i)));
				}
			for (int i = 0; i < 2; i++) {
				struct done done = TAKE(&world, at->rx);
				int number = done.entry.op_context == CONTEXT(1);

				EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(number));
				EQUAL(done.source, at->to[number]);
				EQUAL(here[number][0], 'a' + number);
			}
		}
	EMPTY(&world, at->rx);
	close_world(&world);
}

/* Bits that a receive ignores, and the order among messages and receives that match. */
static void tags(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	char here[8][8];
	struct done done;

	open_world(&world, &options);
	for (int i = 0; i < 4; i++) {
		char byte = (char)i;

		POST(&world, fi_tinject(from->ep, &byte, 1, from->to[1], 0x100 + (uint64_t)i));
	}
	/* The third message, then the first of any. */
	POST(&world, fi_trecv(at->ep, here[0], 8, NULL, FI_ADDR_UNSPEC, 0x102, 0, CONTEXT(0)));
	done = TAKE(&world, at->rx);
	EQUAL(done.entry.tag, 0x102);
	EQUAL(here[0][0], 2);
	POST(&world, fi_trecv(at->ep, here[0], 8, NULL, FI_ADDR_UNSPEC, 0x1ff, 0xff, CONTEXT(1)));
	done = TAKE(&world, at->rx);
	EQUAL(done.entry.tag, 0x100);
	EQUAL(here[0][0], 0);
	POST(&world, fi_trecv(at->ep, here[0], 8, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, CONTEXT(1)));
	EQUAL(TAKE(&world, at->rx).entry.tag, 0x101);
	POST(&world, fi_trecv(at->ep, here[0], 8, NULL, FI_ADDR_UNSPEC, 0x103, 0, CONTEXT(1)));
	EQUAL(TAKE(&world, at->rx).entry.tag, 0x103);
	/* Of posted receives the first that matches; a plain receive takes no tagged message. */
	POST(&world, fi_recv(at->ep, here[3], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(13)));
	POST(&world, fi_trecv(at->ep, here[0], 8, NULL, FI_ADDR_UNSPEC, 0x200, 0xf, CONTEXT(10)));
	POST(&world, fi_trecv(at->ep, here[1], 8, NULL, FI_ADDR_UNSPEC, 0x201, 0, CONTEXT(11)));
	POST(&world, fi_tinject(from->ep, "x", 1, from->to[1], 0x201));
	POST(&world, fi_tinject(from->ep, "y", 1, from->to[1], 0x201));
	DONE(&world, at->rx, CONTEXT(10), FI_RECV | FI_TAGGED);
	DONE(&world, at->rx, CONTEXT(11), FI_RECV | FI_TAGGED);
	POST(&world, fi_inject(from->ep, "z", 1, from->to[1]));
	DONE(&world, at->rx, CONTEXT(13), FI_RECV | FI_MSG);
	EQUAL(here[3][0], 'z');
	close_world(&world);
}

/* How a program asks for a buffer of many messages: by the flag of a call, by default flags and the capability, by
 * default flags of the hints alone, by those of the entry alone. */
enum asked { BY_CALL, BY_DEFAULT, BY_HINT_ALONE, BY_ENTRY_ALONE };

/* One buffer takes messages until less than FI_OPT_MIN_MULTI_RECV is left. */
static void multi_receives(enum asked asked)
{
	enum { LENGTH = 128, ROOM = 1024 };
	bool by_default = asked != BY_CALL;
	struct options options = {
		.caps = FI_MSG | (asked <= BY_DEFAULT ? FI_MULTI_RECV : 0),
		.rx_flags = by_default && asked != BY_ENTRY_ALONE ? FI_MULTI_RECV : 0,
	};
	struct fi_info *info = info_of(&options);
	struct fid_fabric *fabric;
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char here[2][ROOM], there[LENGTH];
	size_t least = 64, length = sizeof(least);
	int taken = 0;

	if (asked == BY_ENTRY_ALONE)
		info->rx_attr->op_flags |= FI_MULTI_RECV;
	else
		CHECK(info->caps & info->rx_attr->caps & FI_MULTI_RECV);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	open_world_at(&world, &options, info, fabric);
	OK(fi_setopt(&at->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
	/* Also of an endpoint that is enabled. */
	least = 0;
	OK(fi_getopt(&at->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &length));
	EQUAL(least, 64);
	if (is_ours()) {
		struct iovec pieces[2] = { { here[0], ROOM }, { here[1], ROOM } };
		struct fi_msg message = { .msg_iov = pieces, .iov_count = 2, .addr = FI_ADDR_UNSPEC };

		/* Entries say where in the one buffer a message is. */
		FAILS(by_default ? fi_recvv(at->ep, pieces, NULL, 2, FI_ADDR_UNSPEC, NULL)
			: fi_recvmsg(at->ep, &message, FI_MULTI_RECV), FI_EINVAL);
	}
	for (int i = 0; i < 2; i++) {
		struct iovec piece = { here[i], ROOM };
		struct fi_msg message = {
			.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(i),
		};

		POST(&world, by_default ? fi_recv(at->ep, here[i], ROOM, NULL, FI_ADDR_UNSPEC, CONTEXT(i))
			: fi_recvmsg(at->ep, &message, FI_MULTI_RECV));
	}
	for (int buffer = 0; buffer < 2; buffer++) {
		bool released = false;
		int messages = 0;
		char *next = here[buffer];

		while (!released) {
			struct done done;

			if (messages < ROOM / LENGTH) {
				fill(there, LENGTH, (unsigned)taken);
				POST(&world, fi_send(from->ep, there, LENGTH, NULL, from->to[1], CONTEXT(9)));
				DONE(&world, from->tx, CONTEXT(9), FI_SEND | FI_MSG);
			}
			done = TAKE(&world, at->rx);
			EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(buffer));
			released = done.entry.flags & FI_MULTI_RECV;
			/* The release may be an entry of its own, that isn't a message. */
			if (!(done.entry.flags & FI_RECV)) {
				CHECK(released);
				break;
			}
			EQUAL(done.entry.len, LENGTH);
			CHECK((char *)done.entry.buf >= next);
			CHECK((char *)done.entry.buf + LENGTH <= here[buffer] + ROOM);
			FILLED(done.entry.buf, LENGTH, (unsigned)taken);
			next = (char *)done.entry.buf + LENGTH;
			messages++;
			taken++;
		}
		EQUAL(messages, ROOM / LENGTH);
	}
	close_world(&world);
}

static void multi_receive(void)
{
	multi_receives(BY_CALL);
	multi_receives(BY_DEFAULT);
}

/* Default flags ask for the capability, too. */
static void multi_receive_by_flag_alone(void)
{
	multi_receives(BY_HINT_ALONE);
	multi_receives(BY_ENTRY_ALONE);
}

/* Cancel finds a receive by its context; the message goes to the next one. */
static void cancelled(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	char here[8], other[8];
	struct fi_cq_err_entry error;

	open_world(&world, &options);
	for (int tagged = 0; tagged < 2; tagged++) {
		uint64_t kind = tagged ? FI_TAGGED : FI_MSG;

		for (int i = 0; i < 2; i++)
			POST(&world, tagged ? fi_trecv(at->ep, i ? other : here, 8, NULL, FI_ADDR_UNSPEC, 4, 0, CONTEXT(i))
				: fi_recv(at->ep, i ? other : here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
		EQUAL(fi_cancel(&at->ep->fid, CONTEXT(0)), 0);
		error = TAKE_ERROR(&world, at->rx);
		EQUAL(error.err, FI_ECANCELED);
		EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(0));
		EQUAL(error.flags & (FI_RECV | kind), FI_RECV | kind);
		EQUAL(error.olen, 0);
		POST(&world, tagged ? fi_tinject(from->ep, "q", 1, from->to[1], 4) : fi_inject(from->ep, "q", 1, from->to[1]));
		DONE(&world, at->rx, CONTEXT(1), FI_RECV | kind);
		EQUAL(other[0], 'q');
	}
	/* Nothing has this context. */
	EQUAL(fi_cancel(&at->ep->fid, CONTEXT(7)), 0);
	EMPTY(&world, at->rx);
	close_world(&world);
}

static ssize_t with_flags(struct side *at, uint64_t tag, void *buffer, size_t length, void *context, uint64_t flags)
{
	struct iovec piece = { buffer, length };
	struct fi_msg_tagged message = {
		.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context,
	};

	return fi_trecvmsg(at->ep, &message, flags);
}

/* Peeks until the message is there: it may be under way. */
static struct done find(struct world *world, struct side *at, uint64_t tag, void *context, uint64_t flags)
{
	double end = now() + PATIENCE;

	for (;;) {
		struct done done = { 0 };
		struct fi_cq_err_entry error = { 0 };
		ssize_t count;

		POST(world, with_flags(at, tag, NULL, 0, context, flags));
		while ((count = fi_cq_read(at->rx, &done.entry, 1)) == -FI_EAGAIN) {
			progress(world);
			CHECK(now() < end);
		}
		if (count == 1)
			return done;
		FAILS(count, FI_EAVAIL);
		EQUAL(fi_cq_readerr(at->rx, &error, 0), 1);
		EQUAL(error.err, FI_ENOMSG);
		/* The sender may have to work. */
		progress(world);
		CHECK(now() < end);
	}
}

/* Peek tells whether a message is there; claim keeps it for one receive; discard drops it. */
static void peek(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	const size_t lengths[] = { 20, 100000 };
	static char there[100000], here[100000];
	struct fi_cq_err_entry error;
	struct done done;

	open_world(&world, &options);
	/* None is there. */
	if (RETRIED(&world, with_flags(at, 1, NULL, 0, CONTEXT(0), FI_PEEK)) == -FI_ENOSYS)
		not_offered("FI_PEEK");
	error = TAKE_ERROR(&world, at->rx);
	EQUAL(error.err, FI_ENOMSG);
	EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(0));
	for (size_t i = 0; i < COUNT(lengths); i++) {
		size_t length = lengths[i];
		uint64_t tag = 0x10 + i;

		fill(there, length, 5);
		POST(&world, fi_tsenddata(from->ep, there, length, NULL, 99, from->to[1], tag, CONTEXT(1)));
		done = find(&world, at, tag, CONTEXT(2), FI_PEEK);
		EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(2));
		EQUAL(done.entry.len, length);
		EQUAL(done.entry.tag, tag);
		EQUAL(done.entry.data, 99);
		EQUAL(done.entry.flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
		/* A peek takes nothing. A claim takes it away from other receives. */
		POST(&world, with_flags(at, tag, NULL, 0, CONTEXT(3), FI_PEEK | FI_CLAIM));
		done = TAKE(&world, at->rx);
		EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(3));
		EQUAL(done.entry.len, length);
		POST(&world, with_flags(at, tag, NULL, 0, CONTEXT(4), FI_PEEK));
		EQUAL(TAKE_ERROR(&world, at->rx).err, FI_ENOMSG);
		POST(&world, with_flags(at, tag, here, length, CONTEXT(3), FI_CLAIM));
		done = TAKE(&world, at->rx);
		EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(3));
		EQUAL(done.entry.len, length);
		FILLED(here, length, 5);
		DONE(&world, from->tx, CONTEXT(1), FI_SEND | FI_TAGGED);
		/* Discard: at a peek, and of what was claimed. */
		for (int claimed = 0; claimed < 2; claimed++) {
			POST(&world, fi_tsend(from->ep, there, length, NULL, from->to[1], tag, CONTEXT(5)));
			if (claimed) {
				done = find(&world, at, tag, CONTEXT(6), FI_PEEK | FI_CLAIM);
				EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(6));
				POST(&world, with_flags(at, tag, NULL, 0, CONTEXT(6), FI_CLAIM | FI_DISCARD));
				done = TAKE(&world, at->rx);
			} else {
				done = find(&world, at, tag, CONTEXT(6), FI_PEEK | FI_DISCARD);
			}
			EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(6));
			POST(&world, with_flags(at, tag, NULL, 0, CONTEXT(7), FI_PEEK));
			EQUAL(TAKE_ERROR(&world, at->rx).err, FI_ENOMSG);
			DONE(&world, from->tx, CONTEXT(5), FI_SEND | FI_TAGGED);
		}
	}
	EMPTY(&world, at->rx);
	close_world(&world);
}

const struct program matching[] = {
	{ "matching-sources", sources },
	{ "matching-directed", directed },
	{ "matching-tags", tags },
	{ "matching-multi-receive", multi_receive },
	{ "matching-many-by-flag-alone", multi_receive_by_flag_alone },
	{ "matching-cancelled", cancelled },
	{ "matching-peek", peek },
	{ NULL, NULL },
};

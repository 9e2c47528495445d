/* Messages in all call forms, plain and tagged, of sizes that go by each of a provider's protocols. */
#include "program.h"

#include <sys/uio.h>

static const size_t sizes[] = { 0, 1, 8, 31, 64, 1000, 4096, 8900, 20000, 70000, 300000, 3000000 };

enum { LARGEST = 3000000, TAG = 0x1234, DATA = 0x77665544 };

static const uint64_t tag = 0xfedcba9876543210 & ~(1ULL << 63);

/* A way to send. */
enum form { SEND, SENDV, SENDMSG, INJECT, SENDDATA, INJECTDATA, SENDMSG_INJECT, SENDMSG_DATA, FORMS };

static const bool has_completion[FORMS] = {
	[SEND] = true, [SENDV] = true, [SENDMSG] = true, [SENDDATA] = true, [SENDMSG_INJECT] = true, [SENDMSG_DATA] = true,
};
static const bool has_data[FORMS] = { [SENDDATA] = true, [INJECTDATA] = true, [SENDMSG_DATA] = true };
static const bool is_injected[FORMS] = { [INJECT] = true, [INJECTDATA] = true, [SENDMSG_INJECT] = true };

static ssize_t send_as(enum form form, bool tagged, struct side *from, fi_addr_t to, char *bytes, size_t length)
{
	struct iovec pieces[2] = {
		{ bytes, length / 3 }, { bytes + length / 3, length - length / 3 },
	};
	uint64_t flags = form == SENDMSG_INJECT ? FI_INJECT : form == SENDMSG_DATA ? FI_REMOTE_CQ_DATA : 0;
	struct fi_msg message = {
		.msg_iov = pieces, .iov_count = 2, .addr = to, .context = CONTEXT(form), .data = DATA,
	};
	struct fi_msg_tagged marked = {
		.msg_iov = pieces, .iov_count = 2, .addr = to, .tag = tag, .context = CONTEXT(form), .data = DATA,
	};

	switch (form) {
	case SEND:
		return tagged ? fi_tsend(from->ep, bytes, length, NULL, to, tag, CONTEXT(form))
			: fi_send(from->ep, bytes, length, NULL, to, CONTEXT(form));
	case SENDV:
		return tagged ? fi_tsendv(from->ep, pieces, NULL, 2, to, tag, CONTEXT(form))
			: fi_sendv(from->ep, pieces, NULL, 2, to, CONTEXT(form));
	case INJECT:
		return tagged ? fi_tinject(from->ep, bytes, length, to, tag) : fi_inject(from->ep, bytes, length, to);
	case SENDDATA:
		return tagged ? fi_tsenddata(from->ep, bytes, length, NULL, DATA, to, tag, CONTEXT(form))
			: fi_senddata(from->ep, bytes, length, NULL, DATA, to, CONTEXT(form));
	case INJECTDATA:
		return tagged ? fi_tinjectdata(from->ep, bytes, length, DATA, to, tag)
			: fi_injectdata(from->ep, bytes, length, DATA, to);
	default:
		return tagged ? fi_tsendmsg(from->ep, &marked, flags) : fi_sendmsg(from->ep, &message, flags);
	}
}

/* A way to receive. */
enum way { RECV, RECVV, RECVMSG, WAYS };

static ssize_t receive_as(enum way way, bool tagged, struct side *at, char *bytes, size_t length, void *context)
{
	struct iovec pieces[2] = {
		{ bytes, length / 2 }, { bytes + length / 2, length - length / 2 },
	};
	struct fi_msg message = { .msg_iov = pieces, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .context = context };
	struct fi_msg_tagged marked = {
		.msg_iov = pieces, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context,
	};

	switch (way) {
	case RECV:
		return tagged ? fi_trecv(at->ep, bytes, length, NULL, FI_ADDR_UNSPEC, tag, 0, context)
			: fi_recv(at->ep, bytes, length, NULL, FI_ADDR_UNSPEC, context);
	case RECVV:
		return tagged ? fi_trecvv(at->ep, pieces, NULL, 2, FI_ADDR_UNSPEC, tag, 0, context)
			: fi_recvv(at->ep, pieces, NULL, 2, FI_ADDR_UNSPEC, context);
	default:
		return tagged ? fi_trecvmsg(at->ep, &marked, 0) : fi_recvmsg(at->ep, &message, 0);
	}
}

/* Sends one message; its receive is posted before or after. */
static void exchange(struct world *world, enum form form, enum way way, bool tagged, size_t length, bool early)
{
	static char there[LARGEST], here[LARGEST + 16];
	struct side *from = &world->side[0], *at = &world->side[1];
	unsigned seed = (unsigned)(form * 8 + way);
	struct done done;
	uint64_t kind = tagged ? FI_TAGGED : FI_MSG;

	fill(there, length, seed);
	memset(here, 0xee, length + 16);
	if (early)
		POST(world, receive_as(way, tagged, at, here, length, CONTEXT(20)));
	POST(world, send_as(form, tagged, from, from->to[1], there, length));
	if (is_injected[form])
		memset(there, 0, length);
	if (!early)
		POST(world, receive_as(way, tagged, at, here, length, CONTEXT(20)));
	done = TAKE(world, at->rx);
	EQUAL((uintptr_t)done.entry.op_context, (uintptr_t)CONTEXT(20));
	EQUAL(done.entry.len, length);
	KIND(done.entry.flags, FI_RECV | kind | (has_data[form] ? FI_REMOTE_CQ_DATA : 0));
	if (has_data[form])
		EQUAL(done.entry.data, DATA);
	if (tagged)
		EQUAL(done.entry.tag, tag);
	FILLED(here, length, seed);
	for (int i = 0; i < 16; i++)
		EQUAL((unsigned char)here[length + i], 0xee);
	if (has_completion[form])
		DONE(world, from->tx, CONTEXT(form), FI_SEND | kind);
}

static void exchanges(bool tagged)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED };
	struct world world;

	open_world(&world, &options);
	CHECK(world.info->tx_attr->iov_limit >= 2);
	CHECK(world.info->rx_attr->iov_limit >= 2);
	CHECK(world.info->domain_attr->cq_data_size >= 4);
	for (size_t i = 0; i < COUNT(sizes); i++)
		for (int form = 0; form < FORMS; form++)
			for (int way = 0; way < WAYS; way++) {
				if (is_injected[form] && sizes[i] > world.info->tx_attr->inject_size)
					continue;
				exchange(&world, form, way, tagged, sizes[i], true);
				exchange(&world, form, way, tagged, sizes[i], false);
			}
	EMPTY(&world, world.side[0].tx);
	EMPTY(&world, world.side[1].rx);
	close_world(&world);
}

static void plain(void)
{
	exchanges(false);
}

static void tagged(void)
{
	exchanges(true);
}

/* As many as `inject_size`, and one more. */
static void inject_limit(void)
{
	struct options options = { 0 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	size_t limit;
	char *there, *here;

	open_world(&world, &options);
	limit = world.info->tx_attr->inject_size;
	CHECK(limit > 0);
	there = malloc(limit + 1);
	here = malloc(limit + 1);
	fill(there, limit + 1, 3);
	POST(&world, fi_recv(at->ep, here, limit + 1, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
	POST(&world, fi_inject(from->ep, there, limit, from->to[1]));
	EQUAL(TAKE(&world, at->rx).entry.len, limit);
	FILLED(here, limit, 3);
	if (is_ours()) {
		struct iovec piece = { there, limit + 1 };
		struct fi_msg message = { .msg_iov = &piece, .iov_count = 1, .addr = from->to[1] };

		FAILS(fi_inject(from->ep, there, limit + 1, from->to[1]), FI_EINVAL);
		FAILS(fi_tinject(from->ep, there, limit + 1, from->to[1], 1), FI_EINVAL);
		FAILS(fi_injectdata(from->ep, there, limit + 1, 1, from->to[1]), FI_EINVAL);
		FAILS(fi_sendmsg(from->ep, &message, FI_INJECT), FI_EINVAL);
	}
	close_world(&world);
	free(there);
	free(here);
}

/* Of many messages under way at once each goes to the receive of its turn, also of different sizes. */
static void many_in_order(void)
{
	enum { MESSAGES = 2000, WINDOW = 50, LENGTH = 20000 };
	struct options options = { 0 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char there[WINDOW][LENGTH], here[WINDOW][LENGTH];
	/* Which message a buffer is for; -1 if it is free. */
	int sends[WINDOW], receives[WINDOW];
	int sent = 0, posted = 0, received = 0;
	double end = now() + PATIENCE;

	memset(sends, -1, sizeof(sends));
	memset(receives, -1, sizeof(receives));
	open_world(&world, &options);
	while (received < MESSAGES) {
		struct fi_cq_tagged_entry entries[8];
		ssize_t count;

		CHECK(now() < end);
		for (int i = 0; i < WINDOW && posted < MESSAGES; i++)
			if (receives[i] < 0) {
				POST(&world, fi_recv(at->ep, here[i], LENGTH, NULL, FI_ADDR_UNSPEC, here[i]));
				receives[i] = posted++;
			}
		for (int i = 0; i < WINDOW && sent < MESSAGES; i++)
			if (sends[i] < 0) {
				size_t length = sent % 7 ? 8 : LENGTH;

				fill(there[i], length, (unsigned)sent);
				if (fi_send(from->ep, there[i], length, NULL, from->to[1], there[i]) == -FI_EAGAIN)
					break;
				sends[i] = sent++;
			}
		count = fi_cq_read(from->tx, entries, COUNT(entries));
		if (count < 0)
			FAILS(count, FI_EAGAIN);
		for (ssize_t i = 0; i < count; i++) {
			size_t buffer = (size_t)((char *)entries[i].op_context - there[0]) / LENGTH;

			CHECK(buffer < WINDOW && sends[buffer] >= 0);
			sends[buffer] = -1;
		}
		count = fi_cq_read(at->rx, entries, COUNT(entries));
		if (count < 0)
			FAILS(count, FI_EAGAIN);
		for (ssize_t i = 0; i < count; i++, received++) {
			size_t buffer = (size_t)((char *)entries[i].op_context - here[0]) / LENGTH;
			size_t length;

			CHECK(buffer < WINDOW && receives[buffer] >= 0);
			length = receives[buffer] % 7 ? 8 : LENGTH;
			EQUAL(entries[i].len, length);
			FILLED(here[buffer], length, (unsigned)receives[buffer]);
			receives[buffer] = -1;
		}
	}
	close_world(&world);
}

/* An endpoint's message to itself. */
static void to_itself(void)
{
	struct options options = { 0 };
	struct world world;
	struct side *side = &world.side[0];
	char there[100], here[100];

	open_world(&world, &options);
	fill(there, sizeof(there), 9);
	POST(&world, fi_trecv(side->ep, here, sizeof(here), NULL, FI_ADDR_UNSPEC, 5, 0, CONTEXT(1)));
	POST(&world, fi_tsend(side->ep, there, sizeof(there), NULL, side->to[0], 5, CONTEXT(2)));
	DONE(&world, side->rx, CONTEXT(1), FI_RECV | FI_TAGGED);
	DONE(&world, side->tx, CONTEXT(2), FI_SEND | FI_TAGGED);
	FILLED(here, sizeof(here), 9);
	close_world(&world);
}

/* A message longer than its receive. */
static void truncated(void)
{
	struct options options = { 0 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char there[100000], here[100000];
	const size_t lengths[] = { 100, 100000 };
	struct fi_cq_err_entry error;

	open_world(&world, &options);
	for (size_t i = 0; i < COUNT(lengths); i++) {
		size_t length = lengths[i];

		fill(there, length, 1);
		memset(here, 0xee, length);
		POST(&world, fi_trecv(at->ep, here, length - 10, NULL, FI_ADDR_UNSPEC, 5, 0, CONTEXT(1)));
		POST(&world, fi_tsend(from->ep, there, length, NULL, from->to[1], 5, CONTEXT(2)));
		error = TAKE_ERROR(&world, at->rx);
		EQUAL(error.err, FI_ETRUNC);
		EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(1));
		if (is_ours()) {
			EQUAL(error.olen, 10);
			EQUAL(error.tag, 5);
			EQUAL(error.flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
			FILLED(here, length - 10, 1);
		}
		for (int k = 1; k <= 10; k++)
			EQUAL((unsigned char)here[length - (size_t)k], 0xee);
		DONE(&world, from->tx, CONTEXT(2), FI_SEND | FI_TAGGED);
	}
	close_world(&world);
}

/* A receive completes when its message has arrived, whichever level of completion its flags name. */
static void levels_of_receives(void)
{
	struct options options = { 0 };
	const uint64_t levels[] = { FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	char here[8];
	struct iovec piece = { here, sizeof(here) };
	struct fi_msg msg = { .msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(0) };
	struct fi_msg_tagged tagged = {
		.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 7, .context = CONTEXT(1),
	};

	if (!is_ours())
		not_offered("levels of completion of receives");
	open_world(&world, &options);
	for (size_t i = 0; i < COUNT(levels); i++) {
		POST(&world, fi_recvmsg(at->ep, &msg, levels[i] | FI_COMPLETION));
		POST(&world, fi_trecvmsg(at->ep, &tagged, levels[i]));
		POST(&world, fi_inject(from->ep, "1", 1, from->to[1]));
		POST(&world, fi_tinject(from->ep, "2", 1, from->to[1], 7));
		DONE(&world, at->rx, CONTEXT(0), FI_RECV | FI_MSG);
		DONE(&world, at->rx, CONTEXT(1), FI_RECV | FI_TAGGED);
	}
	close_world(&world);
}

/* A message in as many pieces as the entry says, by default four and up to 28 for a program that asks. */
static void in_pieces(void)
{
	enum { MOST = 28 };
	const size_t asked[] = { 0, 1, 4, 5, MOST };
	static char there[MOST * 100], here[MOST * 100];

	for (size_t i = 0; i < COUNT(asked); i++) {
		struct options options = { .pieces = asked[i] };
		struct world world;
		struct side *from = &world.side[0], *at = &world.side[1];
		size_t most;

		if (!is_ours() && asked[i] > 4)
			continue;
		open_world(&world, &options);
		most = world.info->tx_attr->iov_limit;
		if (is_ours()) {
			EQUAL(most, asked[i] > 4 ? asked[i] : 4);
			EQUAL(world.info->rx_attr->iov_limit, most);
		}
		for (size_t count = 1; count <= most && count <= MOST; count++) {
			struct iovec sent[MOST], received[MOST];
			size_t at_there = 0, at_here = 0, length = 0;

			/* Pieces of unlike lengths, some of none, and received in others. */
			for (size_t k = 0; k < count; k++) {
				sent[k] = (struct iovec){ there + at_there, k % 3 ? 10 + k : 60 - 60 * (k % 2) };
				at_there += sent[k].iov_len;
			}
			length = at_there;
			for (size_t k = 0; k < count; k++) {
				size_t left = length - at_here, share = k + 1 == count ? left : left / 2;

				received[k] = (struct iovec){ here + at_here, share };
				at_here += share;
			}
			fill(there, length, (unsigned)count);
			memset(here, 0xee, sizeof(here));
			POST(&world, fi_trecvv(at->ep, received, NULL, count, FI_ADDR_UNSPEC, 5, 0, CONTEXT(1)));
			POST(&world, fi_tsendv(from->ep, sent, NULL, count, from->to[1], 5, CONTEXT(2)));
			DONE(&world, at->rx, CONTEXT(1), FI_RECV | FI_TAGGED);
			DONE(&world, from->tx, CONTEXT(2), FI_SEND | FI_TAGGED);
			FILLED(here, length, (unsigned)count);
		}
		close_world(&world);
	}
}

const struct program messages[] = {
	{ "messages-in-pieces", in_pieces },
	{ "messages-plain", plain },
	{ "messages-tagged", tagged },
	{ "messages-inject-limit", inject_limit },
	{ "messages-in-order", many_in_order },
	{ "messages-to-itself", to_itself },
	{ "messages-truncated", truncated },
	{ "messages-levels-of-receives", levels_of_receives },
	{ NULL, NULL },
};

/* What is set and asked of endpoints, directions without a queue, and queues that are read many entries at a time. */
#include "program.h"


/* Options of endpoints, before and after they are enabled. */
static void of_endpoints(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_MULTI_RECV };
	struct world world;
	struct side *side = &world.side[0];
	struct fid_ep *ep;
	size_t value, length;
	const int unknown[] = { FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN, FI_OPT_CM_DATA_SIZE, 12345 };

	open_world(&world, &options);
	OK(fi_endpoint(world.domain, world.info, &ep, NULL));
	for (int enabled = 0; enabled < 2; enabled++) {
		struct fid *fid = enabled ? &side->ep->fid : &ep->fid;

		for (size_t least = 100; least < 400; least += 100) {
			OK(fi_setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
			value = 0;
			length = sizeof(value);
			OK(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &length));
			EQUAL(value, least);
			EQUAL(length, sizeof(value));
		}
		if (!is_ours())
			continue;
		for (size_t i = 0; i < COUNT(unknown); i++) {
			length = sizeof(value);
			FAILS(fi_getopt(fid, FI_OPT_ENDPOINT, unknown[i], &value, &length), FI_ENOPROTOOPT);
			FAILS(fi_setopt(fid, FI_OPT_ENDPOINT, unknown[i], &value, sizeof(value)), FI_ENOPROTOOPT);
		}
		FAILS(fi_getopt(fid, 99, FI_OPT_MIN_MULTI_RECV, &value, &length), FI_ENOPROTOOPT);
		FAILS(fi_setopt(fid, 99, FI_OPT_MIN_MULTI_RECV, &value, sizeof(value)), FI_ENOPROTOOPT);
		FAILS(fi_setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, 3), FI_EINVAL);
		/* Too little room. */
		length = 3;
		FAILS(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &length), FI_ETOOSMALL);
		EQUAL(length, sizeof(value));
	}
	OK(fi_close(&ep->fid));
	close_world(&world);
}

/* The default flags of an endpoint, and what else fi_control is asked. */
static void flags(void)
{
	struct options options = {
		.caps = FI_MSG | FI_TAGGED, .tx_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE, .rx_flags = FI_COMPLETION,
	};
	struct world world;
	struct fid *fid;
	uint64_t value = FI_TRANSMIT;

	open_world(&world, &options);
	fid = &world.side[0].ep->fid;
	if (fi_control(fid, FI_GETOPSFLAG, &value) == -FI_ENOSYS && !is_ours())
		not_offered("FI_GETOPSFLAG");
	value = FI_TRANSMIT;
	OK(fi_control(fid, FI_GETOPSFLAG, &value));
	EQUAL(value, FI_COMPLETION | FI_DELIVERY_COMPLETE);
	value = FI_RECV;
	OK(fi_control(fid, FI_GETOPSFLAG, &value));
	EQUAL(value, FI_COMPLETION);
	if (is_ours()) {
		value = FI_TRANSMIT | FI_RECV;
		FAILS(fi_control(fid, FI_GETOPSFLAG, &value), FI_EINVAL);
		FAILS(fi_control(fid, FI_GETOPSFLAG, NULL), FI_EINVAL);
		FAILS(fi_control(fid, FI_SETOPSFLAG, &value), FI_ENOSYS);
		FAILS(fi_control(fid, 4711, NULL), FI_ENOSYS);
		FAILS(fi_enable(world.side[0].ep), FI_EOPBADSTATE);
	}
	close_world(&world);
}

/* They are deprecated, and programs call them. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* As many operations start as fi_tx_size_left and fi_rx_size_left say, at least. */
static void sizes_left(void)
{
	struct options options = { .cq_size = 16 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char here[64];
	ssize_t receives, transmits;

	open_world(&world, &options);
	receives = fi_rx_size_left(at->ep);
	transmits = fi_tx_size_left(from->ep);
	if (receives == -FI_ENOSYS && !is_ours())
		not_offered("fi_rx_size_left");
	CHECK(receives > 0 && transmits > 0);
	for (ssize_t i = 0; i < receives && i < 64; i++)
		OK(fi_recv(at->ep, &here[i], 1, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	CHECK(fi_rx_size_left(at->ep) <= (receives > 64 ? receives - 64 : 0));
	for (ssize_t i = 0; i < transmits && i < 16; i++)
		OK(fi_send(from->ep, "x", 1, NULL, from->to[1], CONTEXT(i)));
	CHECK(fi_tx_size_left(from->ep) <= (transmits > 16 ? transmits - 16 : 0));
	for (ssize_t i = 0; i < transmits && i < 16; i++)
		DONE(&world, from->tx, CONTEXT(i), FI_SEND | FI_MSG);
	if (is_ours()) {
		struct fid_ep *ep;

		EQUAL(fi_tx_size_left(from->ep), transmits);
		OK(fi_endpoint(world.domain, world.info, &ep, NULL));
		CHECK(fi_tx_size_left(ep) < 0);
		OK(fi_close(&ep->fid));
	}
	close_world(&world);
}

/* Directions without a queue: operations are counted, also those that fail, and go on without end. */
static void only_counted(void)
{
	enum { ROUNDS = 1000, CANCELLED = 20 };
	struct options options = { .counters = true };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_ep *ep[2];
	struct fid_cntr *sent[2], *received[2];
	fi_addr_t to;
	char name[NAME], here[8] = { 0 };
	size_t length = sizeof(name);
	double end = now() + PATIENCE;

	open_world(&world, &options);
	for (int i = 0; i < 2; i++) {
		OK(fi_endpoint(world.domain, world.info, &ep[i], NULL));
		OK(fi_cntr_open(world.domain, &attr, &sent[i], NULL));
		OK(fi_cntr_open(world.domain, &attr, &received[i], NULL));
		OK(fi_ep_bind(ep[i], &sent[i]->fid, FI_SEND));
		OK(fi_ep_bind(ep[i], &received[i]->fid, FI_RECV));
		OK(fi_ep_bind(ep[i], &from->av->fid, 0));
		if (fi_enable(ep[i]) && !is_ours())
			not_offered("endpoints without queues");
	}
	OK(fi_getname(&ep[1]->fid, name, &length));
	EQUAL(fi_av_insert(from->av, name, 1, &to, 0, NULL), 1);
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		/* Some that are cancelled, and one that a message takes. */
		for (int k = 0; k < CANCELLED; k++) {
			OK(fi_trecv(ep[1], here, 8, NULL, FI_ADDR_UNSPEC, 1, 0, CONTEXT(1)));
			OK(fi_cancel(&ep[1]->fid, CONTEXT(1)));
		}
		OK(fi_trecv(ep[1], here, 8, NULL, FI_ADDR_UNSPEC, 2, 0, CONTEXT(2)));
		POST(&world, fi_tsend(ep[0], "abc", 3, NULL, to, 2, CONTEXT(3)));
		while (fi_cntr_read(received[1]) < i || fi_cntr_read(sent[0]) < i)
			CHECK(now() < end);
		EQUAL(fi_cntr_readerr(received[1]), i * CANCELLED);
		EQUAL(here[0], 'a');
	}
	for (int i = 0; i < 2; i++) {
		OK(fi_close(&ep[i]->fid));
		OK(fi_close(&sent[i]->fid));
		OK(fi_close(&received[i]->fid));
	}
	(void)at;
	close_world(&world);
}

/* A read of many takes all that is there, in order, up to a failure; what is beyond the room stays. */
static void many_entries(void)
{
	enum { MESSAGES = 12, ROOM = 5 };
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	struct fi_cq_tagged_entry entries[ROOM];
	struct fi_cq_err_entry error = { 0 };
	char here[MESSAGES][8], data[16];
	int next = 0;
	double end = now() + PATIENCE;

	open_world(&world, &options);
	for (int i = 0; i < MESSAGES; i++)
		POST(&world, fi_trecv(at->ep, here[i], 8, NULL, FI_ADDR_UNSPEC, (uint64_t)i, 0, CONTEXT(i)));
	for (int i = 0; i < MESSAGES; i++)
		/* The eighth is too long. */
		POST(&world, fi_tinject(from->ep, "123456789", i == 7 ? 9 : 1, from->to[1], (uint64_t)i));
	for (int i = 0; i < 1000; i++)
		progress(&world);
	while (next < MESSAGES) {
		fi_addr_t sources[ROOM];
		ssize_t count = fi_cq_readfrom(at->rx, entries, ROOM, sources);

		CHECK(now() < end);
		if (count == -FI_EAGAIN)
			continue;
		if (count == -FI_EAVAIL) {
			EQUAL(next, 7);
			/* It stays until it was read, and bars what is behind it. */
			FAILS(fi_cq_read(at->rx, entries, ROOM), FI_EAVAIL);
			error.err_data = data;
			error.err_data_size = sizeof(data);
			EQUAL(fi_cq_readerr(at->rx, &error, 0), 1);
			EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(7));
			EQUAL(error.err, FI_ETRUNC);
			EQUAL(error.err_data_size, 0);
			if (is_ours()) {
				char text[128];

				EQUAL((uintptr_t)error.err_data, (uintptr_t)data);
				CHECK(*fi_cq_strerror(at->rx, error.prov_errno, error.err_data, text, sizeof(text)));
			}
			next++;
			continue;
		}
		CHECK(count > 0 && count <= ROOM);
		for (ssize_t i = 0; i < count; i++, next++) {
			EQUAL((uintptr_t)entries[i].op_context, (uintptr_t)CONTEXT(next));
			EQUAL(entries[i].tag, next);
			EQUAL(sources[i], at->to[0]);
		}
	}
	FAILS(fi_cq_readerr(at->rx, &error, 0), FI_EAGAIN);
	EMPTY(&world, at->rx);
	close_world(&world);
}

/* libfabric prints our entries and attributes. */
static void printed(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC };
	struct fi_info *info = info_of(&options);
	const char *text = fi_tostr(info, FI_TYPE_INFO);

	CHECK(strstr(text, "FI_EP_RDM"));
	CHECK(strstr(text, info->domain_attr->name));
	CHECK(!strcasestr(text, "unknown"));
	if (is_ours())
		CHECK(strstr(text, "FI_PROTO_EFA") && strstr(text, "FI_ADDR_EFA"));
	CHECK(strstr(fi_tostr(&info->caps, FI_TYPE_CAPS), "FI_ATOMIC"));
	fi_freeinfo(info);
}

const struct program settings[] = {
	{ "settings-of-endpoints", of_endpoints },
	{ "settings-flags", flags },
	{ "settings-sizes-left", sizes_left },
	{ "settings-only-counted", only_counted },
	{ "settings-many-entries", many_entries },
	{ "settings-printed", printed },
	{ NULL, NULL },
};

/* Sleeping until there is work: blocking reads, descriptors, poll sets and wait sets. */
#include "program.h"

#include <poll.h>
#include <pthread.h>

enum { MILLISECONDS = (int)(PATIENCE * 1000) };

/* Sends after a while, from a thread of its own. */
struct later {
	struct world *world;
	int messages;
	pthread_t thread;
};

static void *send_later(void *argument)
{
	struct later *later = argument;
	struct side *from = &later->world->side[0];

	for (int i = 0; i < later->messages; i++) {
		usleep(50 * 1000);
		double end = now() + PATIENCE;
		ssize_t result;

		while ((result = fi_inject(from->ep, "late", 4, from->to[1])) == -FI_EAGAIN) {
			(void)fi_cq_read(from->tx, NULL, 0);
			CHECK(now() < end);
		}
		OK(result);
	}
	return NULL;
}

static void start(struct later *later, struct world *world, int messages)
{
	later->world = world;
	later->messages = messages;
	OK(pthread_create(&later->thread, NULL, send_later, later));
}

static void join(struct later *later)
{
	OK(pthread_join(later->thread, NULL));
}

/* Connects the endpoints, so that what follows needs nothing of the sender but its call. */
static void warm_up(struct world *world)
{
	struct side *from = &world->side[0], *at = &world->side[1];
	char here[8];

	POST(world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(0)));
	POST(world, fi_send(from->ep, "warm", 4, NULL, from->to[1], CONTEXT(1)));
	DONE(world, at->rx, CONTEXT(0), FI_RECV | FI_MSG);
	DONE(world, from->tx, CONTEXT(1), FI_SEND | FI_MSG);
	for (int i = 0; i < 1000; i++)
		progress(world);
}

static void blocking_read(void)
{
	const enum fi_wait_obj objects[] = { FI_WAIT_UNSPEC, FI_WAIT_FD };

	for (size_t i = 0; i < COUNT(objects); i++) {
		struct options options = { .wait = objects[i], .caps = FI_MSG | FI_SOURCE };
		struct world world;
		struct side *at = &world.side[1];
		struct fi_cq_tagged_entry entry;
		struct later later;
		fi_addr_t source = 0;
		char here[8];
		double before;

		open_world(&world, &options);
		warm_up(&world);
		POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
		before = now();
		FAILS(fi_cq_sread(at->rx, &entry, 1, NULL, 100), FI_EAGAIN);
		CHECK(now() - before >= 0.09);
		FAILS(fi_cq_sread(at->rx, &entry, 1, NULL, 0), FI_EAGAIN);
		start(&later, &world, 1);
		EQUAL(fi_cq_sreadfrom(at->rx, &entry, 1, &source, NULL, MILLISECONDS), 1);
		EQUAL((uintptr_t)entry.op_context, (uintptr_t)CONTEXT(2));
		EQUAL(source, at->to[0]);
		join(&later);
		/* Without end. */
		POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(3)));
		start(&later, &world, 1);
		EQUAL(fi_cq_sread(at->rx, &entry, 1, NULL, -1), 1);
		EQUAL((uintptr_t)entry.op_context, (uintptr_t)CONTEXT(3));
		join(&later);
		/* A failure ends the wait too. */
		POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(4)));
		EQUAL(fi_cancel(&at->ep->fid, CONTEXT(4)), 0);
		FAILS(fi_cq_sread(at->rx, &entry, 1, NULL, MILLISECONDS), FI_EAVAIL);
		EQUAL(TAKE_ERROR(&world, at->rx).err, FI_ECANCELED);
		close_world(&world);
	}
}

/* With a threshold, a blocking read waits for that many. */
static void threshold(void)
{
	struct options options = { .wait = FI_WAIT_UNSPEC, .condition = FI_CQ_COND_THRESHOLD };
	struct world world;
	struct side *at = &world.side[1];
	struct fi_cq_tagged_entry entries[8];
	struct later later;
	char here[3][8];

	open_world(&world, &options);
	warm_up(&world);
	for (int i = 0; i < 3; i++)
		POST(&world, fi_recv(at->ep, here[i], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	start(&later, &world, 3);
	EQUAL(fi_cq_sread(at->rx, entries, COUNT(entries), (void *)(uintptr_t)3, MILLISECONDS), 3);
	for (int i = 0; i < 3; i++)
		EQUAL((uintptr_t)entries[i].op_context, (uintptr_t)CONTEXT(i));
	join(&later);
	close_world(&world);
}

static void *signal_later(void *queue)
{
	usleep(100 * 1000);
	OK(fi_cq_signal(queue));
	return NULL;
}

/* fi_cq_signal ends a blocking read that has nothing to return. */
static void signalled(void)
{
	struct options options = { .wait = FI_WAIT_UNSPEC };
	struct world world;
	struct fi_cq_tagged_entry entry;
	pthread_t thread;
	double before;

	open_world(&world, &options);
	before = now();
	OK(pthread_create(&thread, NULL, signal_later, world.side[1].rx));
	FAILS(fi_cq_sread(world.side[1].rx, &entry, 1, NULL, MILLISECONDS), FI_EAGAIN);
	CHECK(now() - before < PATIENCE / 2);
	OK(pthread_join(thread, NULL));
	close_world(&world);
}

/* Without a wait object there is nothing to wait for. */
static void no_wait_object(void)
{
	struct options options = { 0 };
	struct world world;
	struct fi_cq_tagged_entry entry;
	int fd;

	open_world(&world, &options);
	CHECK(fi_cq_sread(world.side[1].rx, &entry, 1, NULL, 10) < 0);
	CHECK(fi_control(&world.side[1].rx->fid, FI_GETWAIT, &fd) < 0);
	close_world(&world);
}

/* A thread sleeps in poll on the queue's descriptor, after fi_trywait allowed it. */
static void descriptor(void)
{
	enum { MESSAGES = 5 };
	struct options options = { .wait = FI_WAIT_FD };
	struct world world;
	struct side *at = &world.side[1];
	struct fid *fids[1];
	struct later later;
	char here[MESSAGES][8];
	int fd = -1, received = 0, waits = 0;

	open_world(&world, &options);
	warm_up(&world);
	fids[0] = &at->rx->fid;
	OK(fi_control(&at->rx->fid, FI_GETWAIT, &fd));
	CHECK(fd >= 0);
	for (int i = 0; i < MESSAGES; i++)
		POST(&world, fi_recv(at->ep, here[i], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	/* What is there forbids to sleep. */
	POST(&world, fi_inject(world.side[0].ep, "first", 5, world.side[0].to[1]));
	for (double end = now() + PATIENCE; fi_trywait(world.fabric, fids, 1) != -FI_EAGAIN; ) {
		(void)fi_cq_read(world.side[0].tx, NULL, 0);
		CHECK(now() < end);
	}
	start(&later, &world, MESSAGES - 1);
	while (received < MESSAGES) {
		struct fi_cq_tagged_entry entry;
		struct pollfd pollfd = { .fd = fd, .events = POLLIN };
		ssize_t count = fi_cq_read(at->rx, &entry, 1);
		int result;

		if (count == 1) {
			EQUAL((uintptr_t)entry.op_context, (uintptr_t)CONTEXT(received));
			received++;
			continue;
		}
		FAILS(count, FI_EAGAIN);
		result = fi_trywait(world.fabric, fids, 1);
		if (result == -FI_EAGAIN)
			continue;
		OK(result);
		EQUAL(poll(&pollfd, 1, MILLISECONDS), 1);
		waits++;
	}
	CHECK(waits > 0);
	join(&later);
	close_world(&world);
}

/* Counters of a descriptor. */
static void counter_descriptor(void)
{
	struct options options = { .wait = FI_WAIT_FD, .counters = true };
	struct world world;
	struct side *at = &world.side[1];
	struct fid *fids[1];
	struct later later;
	char here[8];
	int fd = -1;
	double end = now() + PATIENCE;

	open_world(&world, &options);
	warm_up(&world);
	fids[0] = &at->received->fid;
	OK(fi_control(&at->received->fid, FI_GETWAIT, &fd));
	CHECK(fd >= 0);
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
	start(&later, &world, 1);
	while (fi_cntr_read(at->received) < 2) {
		struct pollfd pollfd = { .fd = fd, .events = POLLIN };
		int result = fi_trywait(world.fabric, fids, 1);

		CHECK(now() < end);
		if (result == -FI_EAGAIN)
			continue;
		OK(result);
		EQUAL(poll(&pollfd, 1, MILLISECONDS), 1);
	}
	join(&later);
	close_world(&world);
}

/* A poll set names the queues and counters that have something. */
static void poll_set(void)
{
	struct options options = { .counters = true };
	struct fi_poll_attr attr = { 0 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	struct fid_poll *set;
	void *found[4];
	char here[8];
	int count;
	double end = now() + PATIENCE;

	open_world(&world, &options);
	OK(fi_poll_open(world.domain, &attr, &set));
	OK(fi_poll_add(set, &at->rx->fid, 0));
	OK(fi_poll_add(set, &from->tx->fid, 0));
	EQUAL(fi_poll(set, found, 4), 0);
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
	POST(&world, fi_inject(from->ep, "a", 1, from->to[1]));
	while ((count = fi_poll(set, found, 4)) == 0)
		CHECK(now() < end);
	EQUAL(count, 1);
	EQUAL((uintptr_t)found[0], (uintptr_t)at);
	DONE(&world, at->rx, CONTEXT(2), FI_RECV | FI_MSG);
	EQUAL(fi_poll(set, found, 4), 0);
	OK(fi_poll_del(set, &at->rx->fid, 0));
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
	POST(&world, fi_inject(from->ep, "a", 1, from->to[1]));
	DONE(&world, at->rx, CONTEXT(2), FI_RECV | FI_MSG);
	EQUAL(fi_poll(set, found, 4), 0);
	if (is_ours()) {
		CHECK(fi_poll_del(set, &at->rx->fid, 0) < 0);
		/* A counter that changed since the last look. */
		OK(fi_poll_add(set, &at->received->fid, 0));
		(void)fi_poll(set, found, 4);
		OK(fi_cntr_add(at->received, 1));
		EQUAL(fi_poll(set, found, 4), 1);
		EQUAL((uintptr_t)found[0], (uintptr_t)at);
		/* Another reader of the counter takes nothing away. */
		OK(fi_cntr_add(at->received, 1));
		CHECK(fi_cntr_read(at->received) > 0);
		EQUAL(fi_poll(set, found, 0), 0);
		EQUAL(fi_poll(set, found, 4), 1);
		EQUAL(fi_poll(set, found, 4), 0);
		OK(fi_poll_del(set, &at->received->fid, 0));
	}
	OK(fi_poll_del(set, &from->tx->fid, 0));
	OK(fi_close(&set->fid));
	close_world(&world);
}

/* A wait set sleeps until one of its queues has something. */
static void wait_set(void)
{
	struct options options = { .wait = FI_WAIT_SET };
	struct fi_wait_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_info *info = info_of(&options);
	struct world world;
	struct side *at = &world.side[1];
	struct fid_fabric *fabric;
	struct later later;
	char here[8];
	double before;
	struct fi_cq_tagged_entry entry;

	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_wait_open(fabric, &attr, &options.set));
	open_world_at(&world, &options, info, fabric);
	warm_up(&world);
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
	before = now();
	for (;;) {
		/* What woke it may be of the endpoints alone. */
		int result = fi_wait(options.set, 100);

		if (result == -FI_ETIMEDOUT)
			break;
		OK(result);
		FAILS(fi_cq_read(at->rx, &entry, 1), FI_EAGAIN);
		CHECK(now() - before < PATIENCE);
	}
	start(&later, &world, 1);
	for (;;) {
		ssize_t count;

		OK(fi_wait(options.set, MILLISECONDS));
		count = fi_cq_read(at->rx, &entry, 1);
		if (count == 1)
			break;
		FAILS(count, FI_EAGAIN);
		(void)fi_cq_read(world.side[0].tx, NULL, 0);
		CHECK(now() - before < PATIENCE);
	}
	EQUAL((uintptr_t)entry.op_context, (uintptr_t)CONTEXT(2));
	join(&later);
	if (is_ours())
		FAILS(fi_close(&options.set->fid), FI_EBUSY);
	for (int i = 0; i < world.sides; i++)
		close_side(&world.side[i]);
	OK(fi_close(&options.set->fid));
	world.sides = 0;
	close_world(&world);
}

/* An entry that the provider made itself, for a peek or a failure, forbids to sleep as any other does. */
static void own_entries(void)
{
	struct options options = { .wait = FI_WAIT_FD };
	struct fi_poll_attr poll_attr = { 0 };
	struct fi_wait_attr wait_attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_info *info = info_of(&options);
	struct fid_fabric *fabric;

	if (!is_ours())
		not_offered("FI_PEEK");
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	for (int in_set = 0; in_set < 2; in_set++) {
		struct world world;
		struct side *at = &world.side[1];
		struct fi_msg_tagged message = { .addr = FI_ADDR_UNSPEC, .tag = 4, .context = CONTEXT(3) };
		struct fi_cq_err_entry error = { 0 };
		struct fi_cq_tagged_entry entry;
		struct fid_poll *polled;
		struct fid *fids[1];
		void *found[2];
		char here[8];

		if (in_set) {
			OK(fi_wait_open(fabric, &wait_attr, &options.set));
			options.wait = FI_WAIT_SET;
		}
		open_world_at(&world, &options, fi_dupinfo(info), fabric);
		fids[0] = in_set ? &options.set->fid : &at->rx->fid;
		OK(fi_poll_open(world.domain, &poll_attr, &polled));
		OK(fi_poll_add(polled, &at->rx->fid, 0));
		for (int failed = 0; failed < 2; failed++) {
			if (failed) {
				POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(3)));
				OK(fi_cancel(&at->ep->fid, CONTEXT(3)));
			} else {
				POST(&world, fi_trecvmsg(at->ep, &message, FI_PEEK));
			}
			FAILS(fi_cq_read(at->rx, &entry, 1), FI_EAVAIL);
			for (int i = 0; i < 3; i++) {
				FAILS(fi_trywait(fabric, fids, 1), FI_EAGAIN);
				EQUAL(fi_poll(polled, found, 2), 1);
				EQUAL((uintptr_t)found[0], (uintptr_t)at);
				if (in_set)
					OK(fi_wait(options.set, MILLISECONDS));
			}
			FAILS(fi_cq_sread(at->rx, &entry, 1, NULL, MILLISECONDS), FI_EAVAIL);
			EQUAL(fi_cq_readerr(at->rx, &error, 0), 1);
			EQUAL(error.err, failed ? FI_ECANCELED : FI_ENOMSG);
			EQUAL(fi_poll(polled, found, 2), 0);
			for (double end = now() + PATIENCE; fi_trywait(fabric, fids, 1); )
				CHECK(now() < end);
		}
		/* One that is there when the queue is closed is gone with it. */
		POST(&world, fi_trecvmsg(at->ep, &message, FI_PEEK));
		OK(fi_poll_del(polled, &at->rx->fid, 0));
		OK(fi_close(&polled->fid));
		for (int i = 0; i < world.sides; i++)
			close_side(&world.side[i]);
		if (in_set) {
			FAILS(fi_wait(options.set, 50), FI_ETIMEDOUT);
			OK(fi_close(&options.set->fid));
		}
		OK(fi_close(&world.domain->fid));
		fi_freeinfo(world.info);
	}
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

/* An event that was peeked at is still there. */
static void peeked_event(void)
{
	struct options options = { 0 };
	struct fi_wait_attr wait_attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_info *info = info_of(&options);
	struct fi_eq_attr attr = { .size = 4, .flags = FI_WRITE, .wait_obj = FI_WAIT_FD };
	struct fi_eq_entry entry = { .data = 7 };
	struct fid_fabric *fabric;

	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	for (int in_set = 0; in_set < 2; in_set++) {
		struct fid_wait *set;
		struct fid_eq *queue;
		struct fid *fids[1];
		uint32_t event;

		if (in_set) {
			OK(fi_wait_open(fabric, &wait_attr, &set));
			attr.wait_obj = FI_WAIT_SET;
			attr.wait_set = set;
		}
		OK(fi_eq_open(fabric, &attr, &queue, NULL));
		fids[0] = in_set ? &set->fid : &queue->fid;
		OK(fi_trywait(fabric, fids, 1));
		EQUAL(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
		for (int i = 0; i < 3; i++) {
			EQUAL(fi_eq_read(queue, &event, &entry, sizeof(entry), FI_PEEK), sizeof(entry));
			FAILS(fi_trywait(fabric, fids, 1), FI_EAGAIN);
			if (in_set)
				OK(fi_wait(set, MILLISECONDS));
		}
		EQUAL(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), sizeof(entry));
		OK(fi_trywait(fabric, fids, 1));
		OK(fi_close(&queue->fid));
		if (in_set)
			OK(fi_close(&set->fid));
	}
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

static atomic_int yields;

/* In place of the C library's, for the provider too. */
int sched_yield(void)
{
	yields++;
	return 0;
}

/* A program that polls until a peer has received lets that peer run, if it is on the same processor. */
static void polls_in_vain(void)
{
	enum { TIMES = 10, POLLS = 256 };
	struct options options = { .counters = true };
	struct fi_cq_tagged_entry entry;
	char to[8], from[8] = { 0 };
	struct world world;
	struct fid_cq *cq;

	open_world(&world, &options);
	cq = world.side[0].rx;
	yields = 0;
	for (int poll = 0; poll < TIMES * POLLS; poll++)
		EQUAL(fi_cntr_read(world.side[0].received), 0);
	if (is_ours())
		CHECK(yields >= TIMES - 1 && yields <= TIMES);
	for (int i = 0; i < 2; i++) {
		/* Without a peer, and with one that a message came from. */
		yields = 0;
		for (int poll = 0; poll < TIMES * POLLS; poll++)
			FAILS(fi_cq_read(cq, &entry, 1), FI_EAGAIN);
		/* The first ones come without a yield. */
		if (is_ours())
			CHECK(yields >= TIMES - 1 && yields <= TIMES);
		POST(&world, fi_trecv(world.side[0].ep, to, sizeof(to), NULL, FI_ADDR_UNSPEC, 1, 0, &to));
		POST(&world, fi_tinject(world.side[1].ep, from, sizeof(from), world.side[1].to[0], 1));
		DONE(&world, cq, &to, FI_RECV | FI_TAGGED);
	}
	close_world(&world);
}

const struct program waits[] = {
	{ "waits-blocking-read", blocking_read },
	{ "waits-threshold", threshold },
	{ "waits-signalled", signalled },
	{ "waits-no-wait-object", no_wait_object },
	{ "waits-descriptor", descriptor },
	{ "waits-counter-descriptor", counter_descriptor },
	{ "waits-poll-set", poll_set },
	{ "waits-wait-set", wait_set },
	{ "waits-own-entries", own_entries },
	{ "waits-peeked-event", peeked_event },
	{ "waits-polls-in-vain", polls_in_vain },
	{ NULL, NULL },
};

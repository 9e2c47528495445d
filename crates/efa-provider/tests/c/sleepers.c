/* Threads that wait for entries, and what other threads do with these entries meanwhile. */
#include "program.h"

#include <pthread.h>
#include <sys/uio.h>

enum { MILLISECONDS = (int)(PATIENCE * 1000) };

static struct fid_eq *open_queue(struct world *world, struct fid_wait *set)
{
	struct fi_eq_attr attr = {
		.size = 16, .flags = FI_WRITE, .wait_obj = set ? FI_WAIT_SET : FI_WAIT_UNSPEC, .wait_set = set,
	};
	struct fid_eq *queue;

	OK(fi_eq_open(world->fabric, &attr, &queue, NULL));
	return queue;
}

static void write_event(struct fid_eq *queue, uint64_t data)
{
	struct fi_eq_entry entry = { .data = data };

	EQUAL(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
}

static struct fid_wait *open_set(struct fid_fabric *fabric)
{
	struct fi_wait_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_wait *set;

	OK(fi_wait_open(fabric, &attr, &set));
	return set;
}

/* Looks for a message that isn't there: the answer is a failure in the queue. */
static void peek_for_nothing(struct side *at, void *context)
{
	struct fi_msg_tagged message = { .addr = FI_ADDR_UNSPEC, .tag = 77, .context = context };

	OK(fi_trecvmsg(at->ep, &message, FI_PEEK));
}

/* ---- entries that a queue got from elsewhere than its endpoints ---- */

static void check_pending(struct world *world, struct fid_wait *set, struct fid *queue)
{
	struct fid *fids[2] = { &set->fid, queue };

	for (int i = 0; i < 2; i++) {
		FAILS(fi_trywait(world->fabric, &fids[0], 1), FI_EAGAIN);
		FAILS(fi_trywait(world->fabric, &fids[1], 1), FI_EAGAIN);
		OK(fi_wait(set, 500));
	}
}

/* A wait set knows the answers of peeks, failures that were seen, and events that were peeked at or didn't fit. */
static void wait_set(void)
{
	struct options options = { .wait = FI_WAIT_SET, .caps = FI_MSG | FI_TAGGED };
	struct fi_info *info = info_of(&options);
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	struct fi_eq_entry event;
	struct fid_fabric *fabric;
	struct world world;
	struct side *at = &world.side[1];
	struct fid_eq *queue;
	uint32_t number;
	char here[8];

	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	options.set = open_set(fabric);
	open_world_at(&world, &options, info, fabric);
	queue = open_queue(&world, options.set);

	peek_for_nothing(at, CONTEXT(1));
	check_pending(&world, options.set, &at->rx->fid);
	FAILS(fi_cq_read(at->rx, &entry, 1), FI_EAVAIL);
	check_pending(&world, options.set, &at->rx->fid);
	FAILS(fi_cq_readerr(at->rx, &error, FI_PEEK), FI_EBADFLAGS);
	EQUAL(fi_cq_readerr(at->rx, &error, 0), 1);
	EQUAL(error.err, FI_ENOMSG);
	EQUAL(error.flags, FI_RECV | FI_TAGGED);
	/* It is no status of the device. */
	SAME_TEXT(fi_cq_strerror(at->rx, error.prov_errno, NULL, NULL, 0), "no message is there that the receive would take");

	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(4)));
	EQUAL(fi_cancel(&at->ep->fid, CONTEXT(4)), 0);
	FAILS(fi_cq_read(at->rx, &entry, 1), FI_EAVAIL);
	check_pending(&world, options.set, &at->rx->fid);
	EQUAL(TAKE_ERROR(&world, at->rx).err, FI_ECANCELED);

	write_event(queue, 1);
	EQUAL(fi_eq_read(queue, &number, &event, sizeof(event), FI_PEEK), sizeof(event));
	check_pending(&world, options.set, &queue->fid);
	FAILS(fi_eq_read(queue, &number, &event, 4, 0), FI_ETOOSMALL);
	check_pending(&world, options.set, &queue->fid);
	EQUAL(fi_eq_read(queue, &number, &event, sizeof(event), 0), sizeof(event));

	OK(fi_close(&queue->fid));
	for (int i = 0; i < world.sides; i++)
		close_side(&world.side[i]);
	OK(fi_close(&options.set->fid));
	world.sides = 0;
	close_world(&world);
}

/* Writes an event, and peeks at it until it is gone. */
static void *write_and_peek(void *argument)
{
	struct fid_eq *queue = argument;
	struct fi_eq_entry event;
	uint32_t number;
	double end = now() + PATIENCE;

	usleep(2000);
	write_event(queue, 1);
	while (fi_eq_read(queue, &number, &event, sizeof(event), FI_PEEK) != -FI_EAGAIN && now() < end)
		;
	return NULL;
}

/* A thread that sleeps for an event gets it, also if another one peeks at it first. */
static void event_peeked(void)
{
	enum { ROUNDS = 200 };
	struct options options = { 0 };
	struct world world;
	struct fid_eq *queue;

	open_world(&world, &options);
	queue = open_queue(&world, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		struct fi_eq_entry event;
		uint32_t number;
		pthread_t thread;
		double begin = now();

		OK(pthread_create(&thread, NULL, write_and_peek, queue));
		EQUAL(fi_eq_sread(queue, &number, &event, sizeof(event), MILLISECONDS, 0), sizeof(event));
		CHECK(now() - begin < PATIENCE / 2);
		OK(pthread_join(thread, NULL));
	}
	OK(fi_close(&queue->fid));
	close_world(&world);
}

/* Reads the answer to a claim, and receives the message at once. */
static void *read_and_receive(void *argument)
{
	struct side *at = argument;
	struct fi_cq_tagged_entry entry;
	char here[8];
	struct iovec piece = { here, sizeof(here) };
	struct fi_msg_tagged message = { .msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC };
	double end = now() + PATIENCE;
	ssize_t count;

	while ((count = fi_cq_read(at->rx, &entry, 1)) != 1)
		CHECK(now() < end);
	message.context = entry.op_context;
	OK(fi_trecvmsg(at->ep, &message, FI_CLAIM));
	return NULL;
}

/* A message is claimed before the answer says so: another thread that reads the answer receives the message. A
 * context stands for one claim. */
static void claimed(void)
{
	enum { ROUNDS = 300 };
	struct options options = { .wait = FI_WAIT_UNSPEC, .caps = FI_MSG | FI_TAGGED };
	struct fi_msg_tagged claim = { .addr = FI_ADDR_UNSPEC, .tag = 5, .context = CONTEXT(3) };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];

	open_world(&world, &options);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t reader;

		POST(&world, fi_tinject(from->ep, "m", 1, from->to[1], 5));
		for (int k = 0; k < 50; k++)
			progress(&world);
		OK(pthread_create(&reader, NULL, read_and_receive, at));
		OK(fi_trecvmsg(at->ep, &claim, FI_PEEK | FI_CLAIM));
		OK(pthread_join(reader, NULL));
		DONE(&world, at->rx, CONTEXT(3), FI_RECV | FI_TAGGED);
	}
	for (int i = 0; i < 2; i++)
		POST(&world, fi_tinject(from->ep, "m", 1, from->to[1], 5));
	for (int k = 0; k < 50; k++)
		progress(&world);
	OK(fi_trecvmsg(at->ep, &claim, FI_PEEK | FI_CLAIM));
	FAILS(fi_trecvmsg(at->ep, &claim, FI_PEEK | FI_CLAIM), FI_EINVAL);
	DONE(&world, at->rx, CONTEXT(3), FI_RECV | FI_TAGGED);
	for (int i = 0; i < 2; i++) {
		OK(fi_trecvmsg(at->ep, &claim, FI_CLAIM | FI_DISCARD));
		DONE(&world, at->rx, CONTEXT(3), FI_RECV | FI_TAGGED);
		if (!i) {
			OK(fi_trecvmsg(at->ep, &claim, FI_PEEK | FI_CLAIM));
			DONE(&world, at->rx, CONTEXT(3), FI_RECV | FI_TAGGED);
		}
	}
	EMPTY(&world, at->rx);
	close_world(&world);
}

/* ---- objects that take the memory of closed ones ---- */

enum { OPENINGS = 400 };

/* Vectors that insert with events, opened and closed by two threads, with one event queue. */
struct vectors {
	struct world *world;
	struct fid_eq *queue;
};

static void *open_and_close(void *argument)
{
	struct vectors *vectors = argument;
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .flags = FI_EVENT, .count = 16 };

	for (int i = 0; i < OPENINGS; i++) {
		struct fid_av *av;

		OK(fi_av_open(vectors->world->domain, &attr, &av, NULL));
		OK(fi_av_bind(av, &vectors->queue->fid, 0));
		OK(fi_close(&av->fid));
	}
	return NULL;
}

/* An event of a new vector isn't dropped because another thread closes the one whose memory it has. */
static void vectors_closed(void)
{
	struct options options = { 0 };
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .flags = FI_EVENT, .count = 16 };
	struct world world;
	struct vectors vectors = { .world = &world };
	pthread_t thread;

	if (!is_ours())
		not_offered("FI_EVENT of address vectors");
	open_world(&world, &options);
	vectors.queue = open_queue(&world, NULL);
	OK(pthread_create(&thread, NULL, open_and_close, &vectors));
	for (int i = 0; i < OPENINGS; i++) {
		struct fi_eq_entry event;
		struct fid_av *av;
		fi_addr_t peer = FI_ADDR_NOTAVAIL;
		uint32_t number;

		OK(fi_av_open(world.domain, &attr, &av, NULL));
		OK(fi_av_bind(av, &vectors.queue->fid, 0));
		OK(fi_av_insert(av, world.side[0].name, 1, &peer, 0, CONTEXT(i % 8)));
		EQUAL(fi_eq_sread(vectors.queue, &number, &event, sizeof(event), MILLISECONDS, 0), sizeof(event));
		EQUAL(number, FI_AV_COMPLETE);
		EQUAL((uintptr_t)event.fid, (uintptr_t)&av->fid);
		CHECK(peer != FI_ADDR_NOTAVAIL);
		OK(fi_close(&av->fid));
	}
	OK(pthread_join(thread, NULL));
	OK(fi_close(&vectors.queue->fid));
	close_world(&world);
}

const struct program sleepers[] = {
	{ "sleepers-wait-set", wait_set },
	{ "sleepers-event-peeked", event_peeked },
	{ "sleepers-claimed", claimed },
	{ "sleepers-vectors-closed", vectors_closed },
	{ NULL, NULL },
};

/* Event queues: written, read, peeked at and waited for. */
#include "program.h"

#include <poll.h>
#include <pthread.h>

enum { MILLISECONDS = (int)(PATIENCE * 1000) };

static struct fi_info *info;
static struct fid_fabric *fabric;

static struct fid_eq *open_queue(enum fi_wait_obj wait)
{
	struct options options = { 0 };
	struct fi_eq_attr attr = { .size = 16, .flags = FI_WRITE, .wait_obj = wait };
	struct fid_eq *queue;

	info = info_of(&options);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_eq_open(fabric, &attr, &queue, CONTEXT(9)));
	return queue;
}

static void close_queue(struct fid_eq *queue)
{
	OK(fi_close(&queue->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

static struct fi_eq_entry event_of(struct fid_eq *queue, uint64_t data)
{
	struct fi_eq_entry entry = { .fid = &queue->fid, .context = CONTEXT(data % 8), .data = data };

	return entry;
}

static void written(void)
{
	struct fid_eq *queue = open_queue(FI_WAIT_UNSPEC);
	struct fi_eq_entry entry, read;
	struct fi_eq_err_entry error = { 0 };
	uint32_t event = 99;

	FAILS(fi_eq_read(queue, &event, &read, sizeof(read), 0), FI_EAGAIN);
	for (uint64_t i = 0; i < 5; i++) {
		entry = event_of(queue, i);
		EQUAL(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
	}
	for (uint64_t i = 0; i < 5; i++) {
		/* A peek leaves it. */
		for (int k = 0; k < 2; k++) {
			memset(&read, 0, sizeof(read));
			EQUAL(fi_eq_read(queue, &event, &read, sizeof(read), k ? 0 : FI_PEEK), sizeof(read));
			EQUAL(event, FI_NOTIFY);
			EQUAL(read.data, i);
			EQUAL((uintptr_t)read.context, (uintptr_t)CONTEXT(i % 8));
			EQUAL((uintptr_t)read.fid, (uintptr_t)&queue->fid);
		}
	}
	FAILS(fi_eq_read(queue, &event, &read, sizeof(read), 0), FI_EAGAIN);
	FAILS(fi_eq_readerr(queue, &error, 0), FI_EAGAIN);
	CHECK(fi_eq_strerror(queue, 5, NULL, NULL, 0));
	close_queue(queue);
}

/* Room for less than the event. */
static void too_small(void)
{
	struct fid_eq *queue = open_queue(FI_WAIT_UNSPEC);
	struct fi_eq_entry entry = event_of(queue, 7), read;
	uint32_t event;

	EQUAL(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
	FAILS(fi_eq_read(queue, &event, &read, 4, 0), FI_ETOOSMALL);
	EQUAL(fi_eq_read(queue, &event, &read, sizeof(read), 0), sizeof(read));
	EQUAL(read.data, 7);
	close_queue(queue);
}

static void *write_later(void *argument)
{
	struct fid_eq *queue = argument;
	struct fi_eq_entry entry = event_of(queue, 3);

	usleep(100 * 1000);
	EQUAL(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
	return NULL;
}

static void waited_for(void)
{
	const enum fi_wait_obj objects[] = { FI_WAIT_UNSPEC, FI_WAIT_FD };

	for (size_t i = 0; i < COUNT(objects); i++) {
		struct fid_eq *queue = open_queue(objects[i]);
		struct fid *fids[1] = { &queue->fid };
		struct fi_eq_entry read;
		uint32_t event;
		pthread_t thread;
		double before = now();
		int fd = -1;

		FAILS(fi_eq_sread(queue, &event, &read, sizeof(read), 100, 0), FI_EAGAIN);
		CHECK(now() - before >= 0.09);
		OK(pthread_create(&thread, NULL, write_later, queue));
		EQUAL(fi_eq_sread(queue, &event, &read, sizeof(read), MILLISECONDS, 0), sizeof(read));
		EQUAL(read.data, 3);
		OK(pthread_join(thread, NULL));
		if (objects[i] == FI_WAIT_FD) {
			struct pollfd pollfd = { .events = POLLIN };

			OK(fi_control(&queue->fid, FI_GETWAIT, &fd));
			pollfd.fd = fd;
			OK(fi_trywait(fabric, fids, 1));
			EQUAL(poll(&pollfd, 1, 0), 0);
			OK(pthread_create(&thread, NULL, write_later, queue));
			EQUAL(poll(&pollfd, 1, MILLISECONDS), 1);
			EQUAL(fi_eq_read(queue, &event, &read, sizeof(read), 0), sizeof(read));
			EQUAL(read.data, 3);
			OK(pthread_join(thread, NULL));
		}
		close_queue(queue);
	}
}

/* An address vector that inserts in the background tells its event queue. */
static void insertion(void)
{
	struct options options = { 0 };
	struct fi_eq_attr attr = { .size = 16, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr vector = { .type = FI_AV_TABLE, .flags = FI_EVENT, .count = 16 };
	struct world world;
	struct fid_eq *queue;
	struct fid_av *av;
	struct fi_eq_entry entry;
	fi_addr_t peers[2] = { FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL };
	char names[2 * NAME];
	uint32_t event;
	int result;

	open_world(&world, &options);
	OK(fi_eq_open(world.fabric, &attr, &queue, NULL));
	result = fi_av_open(world.domain, &vector, &av, CONTEXT(1));
	if (result == -FI_ENOSYS && !is_ours())
		not_offered("FI_EVENT of address vectors");
	OK(result);
	OK(fi_av_bind(av, &queue->fid, 0));
	for (int i = 0; i < 2; i++)
		memcpy(names + (size_t)i * world.side[i].name_length, world.side[i].name, world.side[i].name_length);
	OK(fi_av_insert(av, names, 2, peers, 0, CONTEXT(2)));
	EQUAL(fi_eq_sread(queue, &event, &entry, sizeof(entry), MILLISECONDS, 0), sizeof(entry));
	EQUAL(event, FI_AV_COMPLETE);
	EQUAL(entry.data, 2);
	EQUAL((uintptr_t)entry.context, (uintptr_t)CONTEXT(2));
	EQUAL((uintptr_t)entry.fid, (uintptr_t)&av->fid);
	for (int i = 0; i < 2; i++)
		CHECK(peers[i] != FI_ADDR_NOTAVAIL);
	/* The event of an insertion that has ended stays when the vector is closed. */
	OK(fi_av_insert(av, names, 1, peers, 0, CONTEXT(3)));
	OK(fi_close(&av->fid));
	EQUAL(fi_eq_sread(queue, &event, &entry, sizeof(entry), MILLISECONDS, 0), sizeof(entry));
	EQUAL(event, FI_AV_COMPLETE);
	EQUAL((uintptr_t)entry.context, (uintptr_t)CONTEXT(3));
	OK(fi_close(&queue->fid));
	close_world(&world);
}

/* An insertion with an event doesn't wait for a server; its event says that there is none, unless the vector is closed. */
static void insertion_of_nobody(void)
{
	struct options options = { 0 };
	struct fi_eq_attr attr = { .size = 16, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr vector = { .type = FI_AV_TABLE, .flags = FI_EVENT, .count = 16 };
	struct world world;
	struct fid_eq *queue;
	struct fid_av *av;
	struct fi_eq_entry entry;
	struct fi_eq_err_entry error = { 0 };
	fi_addr_t peer = 5;
	char *place;
	uint32_t event;
	double before;

	if (!is_ours())
		not_offered("addresses that are asked for");
	open_world(&world, &options);
	place = nobodies(&world, 1);
	OK(fi_eq_open(world.fabric, &attr, &queue, NULL));
	for (int closed = 0; closed < 2; closed++) {
		OK(fi_av_open(world.domain, &vector, &av, CONTEXT(1)));
		OK(fi_av_bind(av, &queue->fid, 0));
		before = now();
		OK(fi_av_insert(av, place, 1, &peer, 0, CONTEXT(2)));
		CHECK(now() - before < 1.5);
		if (!closed) {
			FAILS(fi_eq_sread(queue, &event, &entry, sizeof(entry), MILLISECONDS, 0), FI_EAVAIL);
			CHECK(fi_eq_readerr(queue, &error, 0) > 0);
			EQUAL((uintptr_t)error.fid, (uintptr_t)&av->fid);
			CHECK(error.err > 0);
			EQUAL(fi_eq_sread(queue, &event, &entry, sizeof(entry), MILLISECONDS, 0), sizeof(entry));
			EQUAL(event, FI_AV_COMPLETE);
			EQUAL(entry.data, 0);
			EQUAL(peer, FI_ADDR_NOTAVAIL);
		}
		OK(fi_close(&av->fid));
	}
	FAILS(fi_eq_sread(queue, &event, &entry, sizeof(entry), 2500, 0), FI_EAGAIN);
	free(place);
	OK(fi_close(&queue->fid));
	close_world(&world);
}

/* A queue that programs don't write to. */
static void not_writable(void)
{
	struct options options = { 0 };
	struct fi_eq_attr attr = { .size = 4, .wait_obj = FI_WAIT_NONE };
	struct fi_eq_entry entry = { 0 };
	struct fid_eq *queue;
	uint32_t event;

	info = info_of(&options);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_eq_open(fabric, &attr, &queue, NULL));
	if (is_ours()) {
		CHECK(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0) < 0);
		CHECK(fi_eq_sread(queue, &event, &entry, sizeof(entry), 10, 0) < 0);
	}
	FAILS(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), FI_EAGAIN);
	close_queue(queue);
}

/* Waits for an error at the head of the queue. */
static void await_error(struct world *world, struct fid_eq *queue)
{
	struct fi_eq_entry entry;
	uint32_t event;
	double end = now() + PATIENCE;

	while (fi_eq_read(queue, &event, &entry, sizeof(entry), 0) != -FI_EAVAIL) {
		fi_cq_read(world->side[0].tx, NULL, 0);
		CHECK(now() < end);
	}
}

/* Two messages complete as injected ones do, and then nobody is there who could get them. The queue says so, and tells
 * nothing of an endpoint that is closed. */
static void injected_failed(void)
{
	struct options options = { 0 };
	struct fi_eq_attr attr = { .size = 16, .wait_obj = FI_WAIT_FD };
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_entry entry;
	struct fid_eq *queue;
	struct world world;
	struct side *from = &world.side[0], *target = &world.side[1];
	char bytes[8] = { 0 }, text[256] = "";
	struct iovec piece = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct fi_msg message = { .msg_iov = &piece, .iov_count = 1, .context = CONTEXT(1) };
	uint32_t event;

	if (!is_ours())
		not_offered("events of endpoints without connections");
	info = info_of(&options);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_eq_open(fabric, &attr, &queue, NULL));
	options.events = queue;
	open_world_at(&world, &options, info, fabric);
	OK(fi_close(&target->ep->fid));
	target->ep = NULL;

	message.addr = from->to[1];
	for (int i = 0; i < 2; i++)
		OK(fi_sendmsg(from->ep, &message, FI_INJECT_COMPLETE | FI_COMPLETION));
	for (int i = 0; i < 2; i++)
		DONE(&world, from->tx, CONTEXT(1), FI_SEND | FI_MSG);
	await_error(&world, queue);
	error.err_data = text;
	error.err_data_size = sizeof(text) - 1;
	EQUAL(fi_eq_readerr(queue, &error, 0), sizeof(error));
	EQUAL((uintptr_t)error.fid, (uintptr_t)&from->ep->fid);
	EQUAL((uintptr_t)error.context, (uintptr_t)from);
	EQUAL(error.err, FI_ENOTCONN);
	CHECK(strstr(text, "failed"));

	await_error(&world, queue);
	OK(fi_close(&from->ep->fid));
	from->ep = NULL;
	FAILS(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), FI_EAGAIN);
	for (int i = 0; i < world.sides; i++)
		close_side(&world.side[i]);
	OK(fi_close(&world.domain->fid));
	close_queue(queue);
}

const struct program events[] = {
	{ "events-written", written },
	{ "events-too-small", too_small },
	{ "events-waited-for", waited_for },
	{ "events-insertion", insertion },
	{ "events-insertion-of-nobody", insertion_of_nobody },
	{ "events-not-writable", not_writable },
	{ "events-injected-failed", injected_failed },
	{ NULL, NULL },
};

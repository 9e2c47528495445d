/* Two processes, forks, automatic progress, and ends: in any order, at exit, or killed. */
#include "program.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

/* A pipe each way between parent and child. */
struct pipes {
	int to_child[2], to_parent[2];
};

static void make_pipes(struct pipes *pipes)
{
	OK(pipe(pipes->to_child));
	OK(pipe(pipes->to_parent));
}

static void tell(int fd, const void *bytes, size_t length)
{
	EQUAL(write(fd, bytes, length), length);
}

static void hear(int fd, void *bytes, size_t length)
{
	char *at = bytes;

	while (length) {
		ssize_t count = read(fd, at, length);

		CHECK(count > 0);
		at += count;
		length -= (size_t)count;
	}
}

static void ends_well(pid_t child)
{
	int status;

	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

/* Both sides exchange names through pipes and become each other's side 1. */
static void meet(struct world *world, int out, int in)
{
	struct side other = { 0 };

	tell(out, &world->side[0].name_length, sizeof(size_t));
	tell(out, world->side[0].name, world->side[0].name_length);
	hear(in, &other.name_length, sizeof(size_t));
	CHECK(other.name_length <= NAME);
	hear(in, other.name, other.name_length);
	world->side[0].to[1] = introduce(&world->side[0], &other);
}

static void converse(struct world *world, bool first)
{
	static char there[300000], here[300000];
	struct side *side = &world->side[0];

	for (size_t length = 1; length <= sizeof(there); length *= 10)
		for (int turn = 0; turn < 2; turn++)
			if ((turn == 0) == first) {
				fill(there, length, (unsigned)turn);
				POST(world, fi_tsend(side->ep, there, length, NULL, side->to[1], length, CONTEXT(1)));
				DONE(world, side->tx, CONTEXT(1), FI_SEND | FI_TAGGED);
			} else {
				POST(world, fi_trecv(side->ep, here, length, NULL, side->to[1], length, 0, CONTEXT(2)));
				DONE(world, side->rx, CONTEXT(2), FI_RECV | FI_TAGGED);
				FILLED(here, length, (unsigned)turn);
			}
}

static const struct options directed = { .caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV, .sides = 1 };

static void two_processes(void)
{
	struct pipes pipes;
	struct world world;
	pid_t child;

	/* Both sides of the fork have opened something before: they have the same random numbers to come. */
	open_world(&world, &directed);
	close_world(&world);
	make_pipes(&pipes);
	child = fork();
	CHECK(child >= 0);
	open_world(&world, &directed);
	meet(&world, child ? pipes.to_child[1] : pipes.to_parent[1], child ? pipes.to_parent[0] : pipes.to_child[0]);
	converse(&world, child);
	close_world(&world);
	if (!child)
		_exit(0);
	ends_well(child);
}

/* A child's calls on what it inherited give errors; the parent's objects serve on. */
static void inherited(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA, .counters = true };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char memory[64], here[8];
	struct region region;
	pid_t child;

	if (!is_ours())
		not_offered("checks of a child's calls");
	open_world(&world, &options);
	region = register_of(&world, at, memory, sizeof(memory), FI_REMOTE_WRITE);
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		struct fi_cq_tagged_entry entry;
		struct fid_cq *queue;
		struct fi_cq_attr attr = { 0 };
		fi_addr_t peer;

		CHECK(fi_send(from->ep, "c", 1, NULL, from->to[1], NULL) < 0);
		CHECK(fi_tinject(from->ep, "c", 1, from->to[1], 1) < 0);
		CHECK(fi_recv(from->ep, here, 8, NULL, FI_ADDR_UNSPEC, NULL) < 0);
		CHECK(fi_write(from->ep, "c", 1, NULL, from->to[1], region.address, region.key, NULL) < 0);
		CHECK(fi_cq_read(at->rx, &entry, 1) < 0);
		CHECK(fi_cq_open(world.domain, &attr, &queue, NULL) < 0);
		CHECK(fi_av_insert(from->av, at->name, 1, &peer, 0, NULL) < 0);
		(void)fi_cntr_read(from->sent);
		(void)fi_cancel(&at->ep->fid, CONTEXT(1));
		/* Also closing does no harm. */
		(void)fi_close(&from->ep->fid);
		(void)fi_close(&region.mr->fid);
		exit(0);
	}
	ends_well(child);
	POST(&world, fi_send(from->ep, "p", 1, NULL, from->to[1], CONTEXT(2)));
	DONE(&world, at->rx, CONTEXT(1), FI_RECV | FI_MSG);
	EQUAL(here[0], 'p');
	DONE(&world, from->tx, CONTEXT(2), FI_SEND | FI_MSG);
	POST(&world, fi_write(from->ep, "w", 1, NULL, from->to[1], region.address, region.key, CONTEXT(3)));
	DONE(&world, from->tx, CONTEXT(3), FI_RMA | FI_WRITE);
	for (double end = now() + PATIENCE; memory[0] != 'w' && now() < end; )
		progress(&world);
	EQUAL(memory[0], 'w');
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* The child of a process that has used the provider opens a fabric of its own, and both talk. */
static void child_of_its_own(void)
{
	struct pipes pipes;
	struct world world, own;
	pid_t child;

	make_pipes(&pipes);
	open_world(&world, &directed);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		open_world(&own, &directed);
		meet(&own, pipes.to_parent[1], pipes.to_child[0]);
		converse(&own, false);
		close_world(&own);
		exit(0);
	}
	meet(&world, pipes.to_child[1], pipes.to_parent[0]);
	converse(&world, true);
	ends_well(child);
	close_world(&world);
}

/* Automatic progress: the peer answers while its program doesn't call. */
static void automatic(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA, .progress = FI_PROGRESS_AUTO };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char local[100000], memory[100000];
	struct region region;
	double end = now() + PATIENCE;
	struct fi_cq_tagged_entry entry;

	open_world(&world, &options);
	EQUAL(world.info->domain_attr->data_progress, FI_PROGRESS_AUTO);
	region = register_of(&world, at, memory, sizeof(memory), FI_REMOTE_READ);
	fill(memory, sizeof(memory), 8);
	while (fi_read(from->ep, local, sizeof(local), NULL, from->to[1], region.address, region.key, CONTEXT(1)) == -FI_EAGAIN)
		CHECK(now() < end);
	/* Only this queue is read. */
	while (fi_cq_read(from->tx, &entry, 1) == -FI_EAGAIN)
		CHECK(now() < end);
	FILLED(local, sizeof(local), 8);
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

static struct world at_exit;

static void close_late(void)
{
	close_world(&at_exit);
}

static void run_child(void (*program)(void))
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		program();
		exit(0);
	}
	ends_well(child);
}

static void leave_open(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED };
	static char here[100000], there[100000];

	open_world(&at_exit, &options);
	/* Under way. */
	POST(&at_exit, fi_recv(at_exit.side[1].ep, here, sizeof(here), NULL, FI_ADDR_UNSPEC, NULL));
	POST(&at_exit, fi_send(at_exit.side[0].ep, there, sizeof(there), NULL, at_exit.side[0].to[1], NULL));
	POST(&at_exit, fi_recv(at_exit.side[1].ep, here, 8, NULL, FI_ADDR_UNSPEC, NULL));
}

static void leave_open_automatic(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED, .progress = FI_PROGRESS_AUTO };
	static char here[8];

	open_world(&at_exit, &options);
	POST(&at_exit, fi_recv(at_exit.side[1].ep, here, 8, NULL, FI_ADDR_UNSPEC, NULL));
	POST(&at_exit, fi_inject(at_exit.side[0].ep, "x", 1, at_exit.side[0].to[1]));
}

static void closes_at_exit(void)
{
	atexit(close_late);
	leave_open();
}

static void closes_at_exit_automatic(void)
{
	atexit(close_late);
	leave_open_automatic();
}

static void *waits_without_end(void *queue)
{
	struct fi_cq_tagged_entry entry;

	(void)fi_cq_sread(queue, &entry, 1, NULL, -1);
	return NULL;
}

static void exits_with_waiter(void)
{
	struct options options = { .wait = FI_WAIT_UNSPEC };
	pthread_t thread;

	open_world(&at_exit, &options);
	OK(pthread_create(&thread, NULL, waits_without_end, at_exit.side[0].rx));
	usleep(20 * 1000);
}

/* A process exits with objects open and operations under way, closes them from atexit, or while a thread waits. */
static void exiting(void)
{
	run_child(leave_open);
	run_child(closes_at_exit);
	run_child(exits_with_waiter);
	if (is_ours()) {
		run_child(leave_open_automatic);
		run_child(closes_at_exit_automatic);
	}
}

/* Queues, vectors and counters may be closed in any order once the endpoint is, and endpoints with work under way. */
static void any_order(void)
{
	/* Nobody takes what they deliver. */
	setenv("FI_EFARS_CLOSE_TIMEOUT", "50", 1);
	for (int order = 0; order < 24; order++) {
		struct options options = { .counters = true, .progress = order % 2 && is_ours() ? FI_PROGRESS_AUTO : 0 };
		struct world world;
		struct fid *fids[5];
		static char here[64], there[100000];
		int rest = order, left;

		open_world(&world, &options);
		POST(&world, fi_recv(world.side[1].ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
		POST(&world, fi_send(world.side[0].ep, there, sizeof(there), NULL, world.side[0].to[1], CONTEXT(2)));
		for (int i = 0; i < 2; i++) {
			struct side *side = &world.side[order % 3 ? i : 1 - i];
			int choice = rest;

			OK(fi_close(&side->ep->fid));
			fids[0] = &side->tx->fid;
			fids[1] = &side->rx->fid;
			fids[2] = &side->av->fid;
			fids[3] = &side->sent->fid;
			fids[4] = &side->received->fid;
			for (left = 5; left; left--) {
				int place = choice % left;

				OK(fi_close(fids[place]));
				fids[place] = fids[left - 1];
				choice = choice / 2 + 1;
			}
		}
		OK(fi_close(&world.domain->fid));
		OK(fi_close(&world.fabric->fid));
		fi_freeinfo(world.info);
	}
}

/* What was sent before the close of an endpoint arrives. */
static void close_delivers(void)
{
	enum { LONG = 1 << 20 };
	struct pipes pipes;
	struct world world;
	struct side *side = &world.side[0];
	static char bytes[100000], large[LONG];
	pid_t child;

	make_pipes(&pipes);
	child = fork();
	CHECK(child >= 0);
	open_world(&world, &directed);
	if (!child)
		POST(&world, fi_trecv(side->ep, large, LONG, NULL, FI_ADDR_UNSPEC, 9, 0, CONTEXT(9)));
	meet(&world, child ? pipes.to_child[1] : pipes.to_parent[1], child ? pipes.to_parent[0] : pipes.to_child[0]);
	if (child) {
		fill(bytes, sizeof(bytes), 6);
		for (int i = 0; i < 3; i++) {
			size_t length = i ? 8 : 1000;

			POST(&world, fi_tinject(world.side[0].ep, bytes, length < world.info->tx_attr->inject_size ? length : 8,
				side->to[1], (uint64_t)i));
		}
		/* Its completion is not read, and the peer takes the bytes during the close. */
		fill(large, LONG, 9);
		POST(&world, fi_tsend(side->ep, large, LONG, NULL, side->to[1], 9, CONTEXT(9)));
		OK(fi_close(&side->ep->fid));
		side->ep = NULL;
		memset(large, 0xee, LONG);
		close_world(&world);
		ends_well(child);
		return;
	}
	for (int i = 2; i >= 0; i--) {
		POST(&world, fi_trecv(world.side[0].ep, bytes, 1000, NULL, FI_ADDR_UNSPEC, (uint64_t)i, 0, CONTEXT(i)));
		DONE(&world, world.side[0].rx, CONTEXT(i), FI_RECV | FI_TAGGED);
	}
	DONE(&world, side->rx, CONTEXT(9), FI_RECV | FI_TAGGED);
	FILLED(large, LONG, 9);
	close_world(&world);
	_exit(0);
}

/* Opening and closing over and over leaves nothing behind: no descriptor, no memory map. */
static void again_and_again(void)
{
	struct options options = { .wait = FI_WAIT_FD, .counters = false };
	int first = -1;

	if (!is_ours())
		options.wait = FI_WAIT_NONE;
	for (int i = 0; i < 30; i++) {
		struct world world;
		int next;

		open_world(&world, &options);
		close_world(&world);
		next = dup(0);
		CHECK(next >= 0);
		close(next);
		if (i == 5)
			first = next;
		if (i > 5 && is_ours())
			EQUAL(next, first);
	}
}

/* Threads that send and receive on one endpoint at once. */
enum { THREADS = 4, EACH = 500 };

static struct world shared;

static void *send_many(void *argument)
{
	struct side *from = &shared.side[0];
	double end = now() + PATIENCE;
	uint64_t tag = (uintptr_t)argument;

	for (int i = 0; i < EACH; i++) {
		ssize_t result;

		while ((result = fi_tinject(from->ep, &i, sizeof(i), from->to[1], tag)) == -FI_EAGAIN) {
			(void)fi_cq_read(from->tx, NULL, 0);
			CHECK(now() < end);
		}
		OK(result);
	}
	return NULL;
}

static void sharing(void)
{
	struct options options = { 0 };
	pthread_t thread[THREADS];
	struct side *at = &shared.side[1];
	int next[THREADS] = { 0 }, here;

	open_world(&shared, &options);
	EQUAL(shared.info->domain_attr->threading, FI_THREAD_SAFE);
	for (uintptr_t i = 0; i < THREADS; i++)
		OK(pthread_create(&thread[i], NULL, send_many, (void *)i));
	for (int i = 0; i < THREADS * EACH; i++) {
		struct done done;

		POST(&shared, fi_trecv(at->ep, &here, sizeof(here), NULL, FI_ADDR_UNSPEC, 0, ~0ULL, CONTEXT(1)));
		done = TAKE(&shared, at->rx);
		CHECK(done.entry.tag < THREADS);
		EQUAL(here, next[done.entry.tag]);
		next[done.entry.tag]++;
	}
	for (int i = 0; i < THREADS; i++)
		OK(pthread_join(thread[i], NULL));
	close_world(&shared);
}

const struct program processes[] = {
	{ "processes-two", two_processes },
	{ "processes-inherited", inherited },
	{ "processes-child-of-its-own", child_of_its_own },
	{ "processes-automatic", automatic },
	{ "processes-exits", exiting },
	{ "processes-any-order", any_order },
	{ "processes-close-delivers", close_delivers },
	{ "processes-again", again_and_again },
	{ "processes-threads", sharing },
	{ NULL, NULL },
};

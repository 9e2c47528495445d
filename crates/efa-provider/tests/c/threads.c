/* Threads that use the same objects at once, and objects that are closed while threads use them. */
#include "program.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 400, MILLISECONDS = (int)(PATIENCE * 1000) };

static struct world world;
static double end;

/* Operations that have completed, whoever read it: by thread and kind. */
static atomic_int done[THREADS][2];
static int numbers[THREADS][2];

static void read_some(struct fid_cq *queue)
{
	struct fi_cq_tagged_entry entries[3];
	ssize_t count = fi_cq_read(queue, entries, COUNT(entries));

	if (count == -FI_EAGAIN)
		return;
	CHECK(count > 0);
	for (ssize_t i = 0; i < count; i++) {
		ptrdiff_t number = (int *)entries[i].op_context - &numbers[0][0];

		CHECK(number >= 0 && number < 2 * THREADS);
		atomic_fetch_add(&done[number / 2][number % 2], 1);
	}
}

/* Each thread sends to itself, over both endpoints, which all share. */
static void *exchange(void *argument)
{
	size_t thread = (size_t)(uintptr_t)argument;
	struct side *from = &world.side[thread % 2], *at = &world.side[1 - thread % 2];

	for (int round = 0; round < ROUNDS; round++) {
		char here[3000], there[3000];
		size_t length = (size_t)round % sizeof(here);
		ssize_t result;

		fill(there, length, (unsigned)(thread + 10));
		while ((result = fi_trecv(at->ep, here, length, NULL, FI_ADDR_UNSPEC, thread, 0, &numbers[thread][0])) == -FI_EAGAIN)
			read_some(at->rx);
		OK(result);
		while ((result = fi_tsend(from->ep, there, length, NULL, from->to[1 - thread % 2], thread, &numbers[thread][1])) == -FI_EAGAIN)
			read_some(from->tx);
		OK(result);
		while (atomic_load(&done[thread][0]) <= round || atomic_load(&done[thread][1]) <= round) {
			read_some(from->tx);
			read_some(at->rx);
			CHECK(now() < end);
		}
		FILLED(here, length, (unsigned)(thread + 10));
	}
	return NULL;
}

static void run_all(void *(*run)(void *))
{
	pthread_t thread[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		OK(pthread_create(&thread[i], NULL, run, (void *)i));
	for (int i = 0; i < THREADS; i++)
		OK(pthread_join(thread[i], NULL));
}

/* Posting and reading at once, with manual and automatic progress. */
static void both_ways(void)
{
	for (int automatic = 0; automatic < 2; automatic++) {
		struct options options = { .progress = automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL };

		memset(done, 0, sizeof(done));
		open_world(&world, &options);
		end = now() + PATIENCE;
		run_all(exchange);
		close_world(&world);
	}
}

/* Threads that open, use and close objects of one domain. */
static void *opens_and_closes(void *argument)
{
	struct side side;
	static char memory[THREADS][64];

	for (int i = 0; i < 20; i++) {
		struct region region;
		char here[8];

		memset(&side, 0, sizeof(side));
		open_side(&world, &side);
		side.to[0] = introduce(&side, &side);
		region.mr = NULL;
		OK(fi_mr_reg(world.domain, memory[(uintptr_t)argument], 64, FI_REMOTE_READ, 0, 0, 0, &region.mr, NULL));
		OK(fi_recv(side.ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(0)));
		OK(fi_send(side.ep, "x", 1, NULL, side.to[0], CONTEXT(1)));
		DONE(&world, side.rx, CONTEXT(0), FI_RECV | FI_MSG);
		OK(fi_close(&region.mr->fid));
		close_side(&side);
	}
	return NULL;
}

static void opening(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };

	open_world(&world, &options);
	run_all(opens_and_closes);
	close_world(&world);
}

static void *waits_for_completion(void *queue)
{
	struct fi_cq_tagged_entry entry;

	FAILS(fi_cq_sread(queue, &entry, 1, NULL, -1), FI_EAGAIN);
	return NULL;
}

static void *waits_for_counter(void *counter)
{
	OK(fi_cntr_wait(counter, 1, -1));
	return NULL;
}

static void *waits_for_event(void *queue)
{
	struct fi_eq_entry entry;
	uint32_t event;

	EQUAL(fi_eq_sread(queue, &event, &entry, sizeof(entry), -1, 0), sizeof(entry));
	return NULL;
}

/* What a thread sleeps on isn't closed before it wakes. */
static void waited_on(void)
{
	struct options options = { .wait = FI_WAIT_UNSPEC, .counters = true };
	struct fi_eq_attr attr = { .size = 4, .flags = FI_WRITE, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_entry entry = { 0 };
	struct side *side = &world.side[0];
	struct fid_eq *queue;
	pthread_t thread[3];

	if (!is_ours())
		not_offered("a close that fails");
	open_world(&world, &options);
	OK(fi_eq_open(world.fabric, &attr, &queue, NULL));
	OK(fi_close(&side->ep->fid));
	side->ep = NULL;
	OK(pthread_create(&thread[0], NULL, waits_for_completion, side->rx));
	OK(pthread_create(&thread[1], NULL, waits_for_counter, side->sent));
	OK(pthread_create(&thread[2], NULL, waits_for_event, queue));
	usleep(50 * 1000);
	FAILS(fi_close(&side->rx->fid), FI_EBUSY);
	FAILS(fi_close(&side->sent->fid), FI_EBUSY);
	FAILS(fi_close(&queue->fid), FI_EBUSY);
	OK(fi_cq_signal(side->rx));
	OK(fi_cntr_add(side->sent, 1));
	EQUAL(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
	for (int i = 0; i < 3; i++)
		OK(pthread_join(thread[i], NULL));
	OK(fi_close(&queue->fid));
	close_world(&world);
}

static atomic_int reading;

/* Uses objects until they are closed. */
static void *reads_until_closed(void *argument)
{
	struct side *side = &world.side[0];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	char here[8];
	ssize_t result;

	(void)argument;
	atomic_fetch_add(&reading, 1);
	do {
		(void)fi_recv(side->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(1));
		(void)fi_inject(side->ep, "x", 1, side->to[0]);
		(void)fi_cancel(&side->ep->fid, CONTEXT(1));
		(void)fi_cntr_read(side->received);
		result = fi_cq_read(side->rx, &entry, 1);
		if (result == -FI_EAVAIL) {
			memset(&error, 0, sizeof(error));
			(void)fi_cq_readerr(side->rx, &error, 0);
		}
		CHECK(now() < end);
	} while (result != -FI_EBADF);
	return NULL;
}

/* Objects are closed while threads use them, who then get errors. */
static void closed_meanwhile(void)
{
	struct options options = { .counters = true };
	pthread_t thread[THREADS];

	if (!is_ours())
		not_offered("closing what others use");
	for (int round = 0; round < 20; round++) {
		struct side *side = &world.side[0];

		open_world(&world, &options);
		end = now() + PATIENCE;
		atomic_store(&reading, 0);
		for (int i = 0; i < THREADS; i++)
			OK(pthread_create(&thread[i], NULL, reads_until_closed, NULL));
		while (atomic_load(&reading) < THREADS)
			sched_yield();
		usleep((useconds_t)round * 100);
		OK(fi_close(&side->ep->fid));
		OK(fi_close(&side->tx->fid));
		OK(fi_close(&side->sent->fid));
		OK(fi_close(&side->received->fid));
		OK(fi_close(&side->rx->fid));
		for (int i = 0; i < THREADS; i++)
			OK(pthread_join(thread[i], NULL));
		OK(fi_close(&side->av->fid));
		close_side(&world.side[1]);
		world.sides = 0;
		close_world(&world);
	}
}

static atomic_bool go;

static void *closes(void *ep)
{
	while (!atomic_load(&go))
		sched_yield();
	return (void *)(intptr_t)fi_close(ep);
}

/* Of two threads that close an endpoint at once one gets an error, and nothing is left of it. */
static void closed_by_two(void)
{
	if (!is_ours())
		not_offered("closing what others use");
	for (int round = 0; round < 30; round++) {
		struct options options = { .counters = true };
		struct side *side = &world.side[0];
		pthread_t thread[2];
		void *result[2];

		open_world(&world, &options);
		/* Once with what the other side doesn't take, so that both closes take their time. */
		if (!round)
			(void)fi_send(side->ep, "x", 1, NULL, side->to[1], CONTEXT(1));
		atomic_store(&go, false);
		for (int i = 0; i < 2; i++)
			OK(pthread_create(&thread[i], NULL, closes, &side->ep->fid));
		atomic_store(&go, true);
		for (int i = 0; i < 2; i++)
			OK(pthread_join(thread[i], &result[i]));
		if (!result[0] == !result[1])
			FAIL("the results are %td and %td", (intptr_t)result[0], (intptr_t)result[1]);
		side->ep = NULL;
		close_world(&world);
	}
}

static atomic_bool is_over;

static void *closes_slowly(void *ep)
{
	OK(fi_close(ep));
	atomic_store(&is_over, true);
	return NULL;
}

/* While a thread closes an endpoint whose peer doesn't work, another closes regions and waits for none. */
static void closed_beside(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
	struct side *side = &world.side[0];
	static char memory[1 << 20];
	pthread_t thread;

	if (!is_ours())
		not_offered("a close that takes its time");
	open_world(&world, &options);
	for (int i = 0; i < 4; i++)
		(void)fi_tsend(side->ep, memory, sizeof(memory), NULL, side->to[1], 1, CONTEXT(i));
	OK(pthread_create(&thread, NULL, closes_slowly, &side->ep->fid));
	/* One that waited for the endpoint would be the last. */
	CHECK(close_regions_until(&is_over, world.domain, FI_REMOTE_READ) > 10);
	OK(pthread_join(thread, NULL));
	side->ep = NULL;
	close_world(&world);
}

static atomic_bool is_held, is_let_go;

/* Holds a thread that was in a call: then further calls of it fail. */
static void hold(int number)
{
	struct fi_cq_tagged_entry entry;

	(void)number;
	if (fi_cq_read(world.side[0].tx, &entry, 1) != -EDEADLK)
		return;
	atomic_store(&is_held, true);
	while (!atomic_load(&is_let_go))
		usleep(1000);
}

static void *reads_until_let_go(void *argument)
{
	struct fi_cq_tagged_entry entry;

	(void)argument;
	while (!atomic_load(&is_let_go))
		FAILS(fi_cq_read(world.side[1].rx, &entry, 1), FI_EAGAIN);
	return NULL;
}

static void *finds_busy(void *fid)
{
	FAILS(fi_close(fid), FI_EBUSY);
	return NULL;
}

/* A thread that doesn't return from a call keeps others from closing objects. When it has returned they are closed. */
static void held_in_a_call(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_MSG };
	struct fi_cntr_attr counter_attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cq *queue;
	struct fid_cntr *counter;
	struct fi_cq_msg_entry entry;
	struct fid_mr *mr;
	static char memory[64];
	pthread_t reader, closer[4];
	uint64_t key;

	if (!is_ours())
		not_offered("a close that waits for threads");
	open_world(&world, &options);
	OK(fi_cq_open(world.domain, &cq_attr, &queue, NULL));
	OK(fi_cntr_open(world.domain, &counter_attr, &counter, NULL));
	OK(fi_mr_reg(world.domain, memory, sizeof(memory), FI_REMOTE_READ, 0, 0, 0, &mr, memory));
	key = fi_mr_key(mr);
	signal(SIGUSR1, hold);
	OK(pthread_create(&reader, NULL, reads_until_let_go, NULL));
	end = now() + PATIENCE;
	while (!atomic_load(&is_held)) {
		OK(pthread_kill(reader, SIGUSR1));
		usleep(1000);
		CHECK(now() < end);
	}
	struct fid *fids[] = { &queue->fid, &counter->fid, &mr->fid, &world.side[0].ep->fid };
	for (size_t i = 0; i < COUNT(fids); i++)
		OK(pthread_create(&closer[i], NULL, finds_busy, fids[i]));
	for (size_t i = 0; i < COUNT(fids); i++)
		OK(pthread_join(closer[i], NULL));
	/* They are as before. */
	EQUAL(fi_mr_key(mr), key);
	EQUAL((uintptr_t)mr->fid.context, (uintptr_t)memory);
	EQUAL(fi_cntr_read(counter), 0);
	FAILS(fi_cq_read(queue, &entry, 1), FI_EAGAIN);
	atomic_store(&is_let_go, true);
	OK(pthread_join(reader, NULL));
	signal(SIGUSR1, SIG_DFL);
	for (size_t i = 0; i < COUNT(fids); i++)
		OK(fi_close(fids[i]));
	world.side[0].ep = NULL;
	close_world(&world);
}

static void cancel(pthread_t thread)
{
	void *result;

	OK(pthread_cancel(thread));
	OK(pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
}

static void *opens_until_cancelled(void *argument)
{
	static char memory[4096];

	for (;;) {
		struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD };
		struct fi_info *hints = hints_of(&world.options), *info;
		struct fid_cq *queue;
		struct fid_mr *mr;
		struct side side = { 0 };
		int state;

		OK(fi_cq_open(world.domain, &attr, &queue, NULL));
		OK(fi_mr_reg(world.domain, memory, sizeof(memory), FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
		/* Not by way of libfabric, whose own calls may be such points. */
		OK(library()->getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		fi_freeinfo(info);
		fi_freeinfo(hints);
		open_side(&world, &side);
		close_side(&side);
		OK(fi_close(&mr->fid));
		OK(fi_close(&queue->fid));
		/* Each call has left it as it was. */
		OK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state));
		EQUAL(state, PTHREAD_CANCEL_ENABLE);
		OK(fi_cq_open(world.domain, &attr, &queue, NULL));
		OK(fi_close(&queue->fid));
		OK(pthread_setcancelstate(state, &state));
		EQUAL(state, PTHREAD_CANCEL_DISABLE);
		pthread_testcancel();
	}
	return argument;
}

/* A thread that is cancelled in a call completes it. */
static void cancelled_in_calls(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };
	pthread_t thread;

	CHECK(library());
	open_world(&world, &options);
	for (useconds_t round = 0; round < 40; round++) {
		OK(pthread_create(&thread, NULL, opens_until_cancelled, NULL));
		usleep(1000 + round * 370);
		cancel(thread);
	}
	close_world(&world);
}

/* The threads of this process but the first, and how many of them take a signal of the process. */
static void count_threads(int *others, int *that_take)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	char path[300], line[200];

	CHECK(tasks);
	*others = *that_take = 0;
	while ((task = readdir(tasks))) {
		unsigned long long blocked;
		FILE *status;

		if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
			continue;
		++*others;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
		CHECK((status = fopen(path, "r")));
		while (fgets(line, sizeof(line), status))
			if (sscanf(line, "SigBlk: %llx", &blocked) == 1)
				*that_take += !(blocked >> (SIGUSR1 - 1) & 1);
		OK(fclose(status));
	}
	OK(closedir(tasks));
}

/* Signals are the program's: the library's threads block them. A handler that exits on one of these would wait for the locks
 * that the thread holds. */
static void block_signals(void)
{
	static const struct options options = { .caps = FI_MSG | FI_TAGGED, .progress = FI_PROGRESS_AUTO };
	int others, that_take;

	open_world(&world, &options);
	count_threads(&others, &that_take);
	CHECK(others > 0);
	EQUAL(that_take, 0);
	close_world(&world);
}

const struct program threads[] = {
	{ "threads-both-ways", both_ways },
	{ "threads-opening", opening },
	{ "threads-waited-on", waited_on },
	{ "threads-closed-meanwhile", closed_meanwhile },
	{ "threads-closed-by-two", closed_by_two },
	{ "threads-closed-beside", closed_beside },
	{ "threads-held", held_in_a_call },
	{ "threads-cancelled-in-calls", cancelled_in_calls },
	{ "threads-signals", block_signals },
	{ NULL, NULL },
};

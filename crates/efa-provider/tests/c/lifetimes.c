/* Ends: nothing touches memory that was given back, and the library is sound at exit. */
#include "program.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { LENGTH = 1 << 20, TAG = 5 };

static const struct options remote = { .caps = FI_MSG | FI_TAGGED | FI_RMA, .sides = 1 };

/* This side's end of a pair of sockets between a process and its child. */
static int line;

static pid_t divide(void)
{
	int pair[2];
	pid_t child;

	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child = fork();
	CHECK(child >= 0);
	line = pair[!child];
	close(pair[!!child]);
	return child;
}

static void tell(const void *bytes, size_t length)
{
	EQUAL(send(line, bytes, length, 0), length);
}

static void hear(void *bytes, size_t length)
{
	EQUAL(recv(line, bytes, length, MSG_WAITALL), length);
}

/* Whether the other side has said something. */
static bool was_told(void)
{
	char byte;

	return recv(line, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

static void ends_well(pid_t child)
{
	int status;

	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

/* The other process becomes this side's 1. */
static void meet(struct world *world)
{
	struct side other = { .name_length = world->side[0].name_length };

	tell(world->side[0].name, NAME);
	hear(other.name, NAME);
	world->side[0].to[1] = introduce(&world->side[0], &other);
}

static char *map(void)
{
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

/* Unmaps memory, and puts other memory in its place. */
static void replace(char *memory)
{
	OK(munmap(memory, LENGTH));
	EQUAL((uintptr_t)mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
		(uintptr_t)memory);
	memset(memory, 0x5a, LENGTH);
}

static void untouched(const char *memory)
{
	for (size_t i = 0; i < LENGTH; i++)
		EQUAL(memory[i], 0x5a);
}

static void drain(struct fid_cq *queue)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	ssize_t result;

	for (int i = 0; i < 50; i++) {
		result = fi_cq_read(queue, &entry, 1);
		if (result == -FI_EAVAIL)
			(void)fi_cq_readerr(queue, &error, 0);
	}
}

static void work(struct world *world, double seconds)
{
	for (double end = now() + seconds; now() < end; ) {
		drain(world->side[0].tx);
		drain(world->side[0].rx);
	}
}

/* What a peer does to another process until that says that it is over. Its operations may fail. */
static void bother(void (*start)(struct side *side, const uint64_t place[2]))
{
	struct world world;
	uint64_t place[2];
	double end = now() + PATIENCE;

	open_world(&world, &remote);
	meet(&world);
	hear(place, sizeof(place));
	while (!was_told()) {
		start(&world.side[0], place);
		drain(world.side[0].tx);
		drain(world.side[0].rx);
		CHECK(now() < end);
	}
	close_world(&world);
	exit(0);
}

static char bytes[LENGTH], other_bytes[LENGTH];

static void writes_and_reads(struct side *side, const uint64_t place[2])
{
	memset(bytes, 0xee, sizeof(bytes));
	(void)fi_write(side->ep, bytes, LENGTH, NULL, side->to[1], place[0], place[1], CONTEXT(1));
	(void)fi_write(side->ep, bytes, 64, NULL, side->to[1], place[0], place[1], CONTEXT(1));
	(void)fi_read(side->ep, other_bytes, LENGTH, NULL, side->to[1], place[0], place[1], CONTEXT(1));
}

static void sends(struct side *side, const uint64_t place[2])
{
	(void)place;
	memset(bytes, 0xee, sizeof(bytes));
	(void)fi_tsend(side->ep, bytes, LENGTH, NULL, side->to[1], TAG, CONTEXT(1));
	(void)fi_tsend(side->ep, bytes, 64, NULL, side->to[1], TAG, CONTEXT(1));
}

static void receives(struct side *side, const uint64_t place[2])
{
	(void)place;
	/* Never what came in the place of what was sent. */
	CHECK(!memchr(other_bytes, 0x5a, LENGTH));
	(void)fi_trecv(side->ep, other_bytes, LENGTH, NULL, FI_ADDR_UNSPEC, TAG, 0, CONTEXT(1));
}

/* After fi_mr_close returns, a peer that goes on with writes and reads touches nothing. */
static void region_unmapped(void)
{
	struct world world;
	pid_t child = divide();
	char *memory = NULL;
	uint64_t place[2];

	if (!child)
		bother(writes_and_reads);
	open_world(&world, &remote);
	meet(&world);
	for (int round = 0; round < 3; round++) {
		struct region region;

		memory = map();
		region = register_of(&world, &world.side[0], memory, LENGTH, FI_REMOTE_READ | FI_REMOTE_WRITE);
		place[0] = region.address;
		place[1] = region.key;
		/* The peer knows the first region alone. */
		if (!round)
			tell(place, sizeof(place));
		for (double end = now() + PATIENCE; !round && memory[0] != (char)0xee; )
			CHECK((progress(&world), now() < end));
		OK(fi_close(&region.mr->fid));
		replace(memory);
		work(&world, 0.1);
		untouched(memory);
		OK(munmap(memory, LENGTH));
	}
	tell("", 1);
	work(&world, 0.1);
	ends_well(child);
	close_world(&world);
}

/* After the close of an endpoint returns, what it was to receive into or to send from isn't touched. */
static void buffers_unmapped(bool receiver)
{
	/* Also while the program doesn't call. */
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA, .sides = 1, .progress = is_ours() ? FI_PROGRESS_AUTO : 0 };
	struct world world;
	pid_t child = divide();
	char *memory;
	uint64_t place[2] = { 0, 0 };

	if (!child)
		bother(receiver ? sends : receives);
	open_world(&world, &options);
	meet(&world);
	memory = map();
	tell(place, sizeof(place));
	/* The sends are under way when the endpoint is closed. */
	for (int i = 0; i < 20; i++)
		if (receiver)
			(void)fi_trecv(world.side[0].ep, memory, LENGTH, NULL, FI_ADDR_UNSPEC, TAG, 0, CONTEXT(1));
		else
			(void)fi_tsend(world.side[0].ep, memory, LENGTH, NULL, world.side[0].to[1], TAG, CONTEXT(1));
	for (double end = now() + PATIENCE; receiver && memory[0] != (char)0xee; )
		CHECK((progress(&world), now() < end));
	OK(fi_close(&world.side[0].ep->fid));
	replace(memory);
	usleep(100 * 1000);
	untouched(memory);
	tell("", 1);
	ends_well(child);
	OK(fi_close(&world.side[0].tx->fid));
	OK(fi_close(&world.side[0].rx->fid));
	OK(fi_close(&world.side[0].av->fid));
	world.sides = 0;
	close_world(&world);
	OK(munmap(memory, LENGTH));
}

static void receives_unmapped(void)
{
	buffers_unmapped(true);
}

static void sends_unmapped(void)
{
	buffers_unmapped(false);
}

/* A close is over soon even if the peer never answers: after what FI_EFARS_CLOSE_TIMEOUT says, or 2 s. */
static void close_is_bounded(void)
{
	const char *set = getenv("FI_EFARS_CLOSE_TIMEOUT");
	double least = is_ours() ? (set ? atof(set) / 1000 : 2) : 0;
	struct world world;
	pid_t child = divide();
	double before;
	char *memory;

	open_world(&world, &remote);
	meet(&world);
	if (!child) {
		/* It knows the other side, but works no more. */
		char byte;

		hear(&byte, 1);
		_exit(0);
	}
	memory = map();
	for (int i = 0; i < 4; i++)
		(void)fi_tsend(world.side[0].ep, memory, LENGTH, NULL, world.side[0].to[1], TAG, CONTEXT(1));
	before = now();
	OK(fi_close(&world.side[0].ep->fid));
	before = now() - before;
	if (before < least)
		FAIL("the close took %g s, expected at least %g s", before, least);
	/* A shorter time than the default is told apart from it, a longer one by the least. */
	if (before > (least < 1 ? 1.8 : least + 10))
		FAIL("the close took %g s, expected %g s", before, least);
	replace(memory);
	untouched(memory);
	tell("", 1);
	ends_well(child);
	OK(fi_close(&world.side[0].tx->fid));
	OK(fi_close(&world.side[0].rx->fid));
	OK(fi_close(&world.side[0].av->fid));
	world.sides = 0;
	close_world(&world);
}

/* ---- at exit ---- */

static struct world left;
static bool closes_in_destructor;

/* After the handlers of atexit, and after those of libraries that were loaded later. */
__attribute__((destructor)) static void close_in_destructor(void)
{
	if (closes_in_destructor)
		close_world(&left);
}

static void open_left(enum fi_progress kind)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED, .progress = kind, .wait = FI_WAIT_UNSPEC };
	static char here[64];

	open_world(&left, &options);
	POST(&left, fi_recv(left.side[1].ep, here, sizeof(here), NULL, FI_ADDR_UNSPEC, NULL));
	POST(&left, fi_send(left.side[0].ep, bytes, 100000, NULL, left.side[0].to[1], NULL));
}

static void exit_now(int number)
{
	(void)number;
	exit(0);
}

/* In the handler of a signal that interrupted a call, each of these fails. */
static void close_some(void)
{
	struct fi_cq_tagged_entry entry;

	(void)fi_close(&left.side[0].ep->fid);
	(void)fi_close(&left.side[1].ep->fid);
	(void)fi_cq_read(left.side[0].tx, &entry, 1);
	(void)fi_close(&left.side[0].tx->fid);
	(void)fi_close(&left.domain->fid);
}

/* Exits from a signal handler that interrupts calls, mostly within one. */
static void exit_in_handler(enum fi_progress kind, void (*handler)(void), bool waits)
{
	struct fi_cq_tagged_entry entry;

	open_left(kind);
	/* Until nothing allocates any more: what interrupts malloc may not exit. */
	for (int i = 0; i < 5000; i++)
		progress(&left);
	atexit(handler);
	signal(SIGALRM, exit_now);
	ualarm(20 * 1000, 0);
	for (;;)
		if (waits)
			(void)fi_cq_sread(left.side[0].rx, &entry, 1, NULL, -1);
		else
			(void)fi_cq_read(left.side[0].rx, &entry, 1);
}

static void *reads_on(void *argument)
{
	struct fi_cq_tagged_entry entry;

	(void)argument;
	for (;;)
		(void)fi_cq_read(left.side[1].rx, &entry, 1);
	return NULL;
}

static void in_child(int way)
{
	pid_t child = fork();
	enum fi_progress kind = way & 1 ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	pthread_t thread;

	CHECK(child >= 0);
	if (child)
		return ends_well(child);
	alarm((unsigned)PATIENCE);
	switch (way / 2) {
	case 0:
		open_left(kind);
		closes_in_destructor = true;
		break;
	case 1:
		exit_in_handler(kind, close_some, false);
		break;
	case 2:
		exit_in_handler(kind, close_some, true);
		break;
	case 3:
		/* Another thread reads on. */
		open_left(kind);
		OK(pthread_create(&thread, NULL, reads_on, NULL));
		usleep(10 * 1000);
		break;
	default:
		/* All is left open. */
		open_left(kind);
	}
	exit(0);
}

static void at_exit(void)
{
	for (int way = 0; way < 10; way++)
		in_child(way);
}

/* The library stays where it is when it is unloaded: its threads and thread-local variables outlive that. */
static void unloaded(void)
{
	char path[4096];
	void *library, *entry;
	Dl_info info;

	if (!is_ours())
		not_offered("a library of its own");
	CHECK(getenv("FI_PROVIDER_PATH"));
	snprintf(path, sizeof(path), "%s/libefars-fi.so", getenv("FI_PROVIDER_PATH"));
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	entry = dlsym(library, "fi_prov_ini");
	CHECK(entry);
	OK(dlclose(library));
	CHECK(dladdr(entry, &info));
	open_left(FI_PROGRESS_AUTO);
	close_world(&left);
}

/* A copy of libfabric by another name, as other libraries bring one along. */
static void *another_libfabric(void)
{
	static const char name[] = "libfabric.so.1", other[] = "libfabrix.so.1";
	char path[] = "/tmp/libfabrix.XXXXXX", *bytes, *found;
	Dl_info this;
	FILE *from;
	void *copy;
	long length;
	int to = mkstemp(path);

	CHECK(to >= 0 && dladdr((void *)(uintptr_t)fi_getinfo, &this) && (from = fopen(this.dli_fname, "r")));
	OK(fseek(from, 0, SEEK_END));
	length = ftell(from);
	rewind(from);
	bytes = malloc((size_t)length);
	EQUAL(fread(bytes, 1, (size_t)length, from), length);
	for (char *next = bytes; (found = memmem(next, (size_t)(bytes + length - next), name, sizeof(name))); next = found + 1)
		memcpy(found, other, sizeof(other));
	EQUAL(write(to, bytes, (size_t)length), length);
	OK(close(to));
	OK(fclose(from));
	free(bytes);
	copy = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	OK(unlink(path));
	if (!copy)
		FAIL("%s", dlerror());
	return copy;
}

/* Of several in a process the provider uses the one that loads it, also when the program has closed that. */
static void second_libfabric(void)
{
	struct options options = { 0 };
	struct fi_info *hints = hints_of(&options), *info;
	void *copy = another_libfabric();
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
	int (*getparams)(struct fi_param **, int *);
	void (*freeparams)(struct fi_param *);
	struct fi_param *params;
	struct world world;
	int count;
	bool has_ours = false;

	if (!is_ours())
		not_offered("a provider in a library of its own");
	*(void **)&getinfo = dlsym(copy, "fi_getinfo");
	*(void **)&getparams = dlsym(copy, "fi_getparams");
	*(void **)&freeparams = dlsym(copy, "fi_freeparams");
	CHECK(getinfo && getparams && freeparams);
	OK(getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	SAME_TEXT(info->fabric_attr->prov_name, provider());
	OK(getparams(&params, &count));
	for (int i = 0; i < count; i++)
		has_ours |= !strcmp(params[i].name, "FI_EFARS_DEVICE");
	CHECK(has_ours);
	freeparams(params);
	OK(dlclose(copy));
	fi_freeinfo(info);
	fi_freeinfo(hints);
	open_world(&world, &options);
	close_world(&world);
}

/* What is under way on an endpoint that is closed has no completions, and no counter counts it. */
static void close_discards(void)
{
	struct options options = { .counters = true };
	struct side *side;
	struct world world;
	struct fi_cq_tagged_entry entry;
	char here[3][8];

	if (!is_ours())
		not_offered("a close without completions");
	open_world(&world, &options);
	side = &world.side[0];
	for (int i = 0; i < 3; i++)
		POST(&world, fi_recv(side->ep, here[i], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	POST(&world, fi_send(side->ep, "x", 1, NULL, side->to[1], CONTEXT(4)));
	OK(fi_close(&side->ep->fid));
	side->ep = NULL;
	EQUAL(fi_cq_read(side->rx, &entry, 1), -FI_EAGAIN);
	EQUAL(fi_cq_read(side->tx, &entry, 1), -FI_EAGAIN);
	EQUAL(fi_cntr_readerr(side->received), 0);
	EQUAL(fi_cntr_readerr(side->sent), 0);
	close_world(&world);
}

const struct program lifetimes[] = {
	{ "lifetimes-region-unmapped", region_unmapped },
	{ "lifetimes-receives-unmapped", receives_unmapped },
	{ "lifetimes-sends-unmapped", sends_unmapped },
	{ "lifetimes-close-is-bounded", close_is_bounded },
	{ "lifetimes-close-discards", close_discards },
	{ "lifetimes-unloaded", unloaded },
	{ NULL, NULL },
};

/* A group of its own, as no other program may have loaded the provider in this process. */
const struct program libfabrics[] = {
	{ "libfabrics-two", second_libfabric },
	{ NULL, NULL },
};

const struct program exits[] = {
	{ "exits-in-any-way", at_exit },
	{ NULL, NULL },
};

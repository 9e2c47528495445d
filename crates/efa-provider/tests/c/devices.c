/*
 * Which processes reach each other, by FI_EFARS_DEVICE. The library reads it once in a process, so nothing is opened
 * before the fork: a group of its own.
 */
#include "program.h"

#include <sys/socket.h>
#include <sys/wait.h>

enum { TAG = 5 };

static void tell(int line, const void *bytes, size_t length)
{
	EQUAL(send(line, bytes, length, 0), length);
}

static void hear(int line, void *bytes, size_t length)
{
	EQUAL(recv(line, bytes, length, MSG_WAITALL), length);
}

/* A process on a device, and what it does with the other's address. */
static pid_t start(const char *device, int line, void (*role)(struct world *world, int line))
{
	static const struct options options = { .caps = FI_MSG | FI_TAGGED, .sides = 1 };
	pid_t child = fork();
	struct world world;
	struct side other = { 0 };

	CHECK(child >= 0);
	if (child)
		return child;
	OK(setenv("FI_EFARS_DEVICE", device, 1));
	OK(setenv("FI_EFARS_CLOSE_TIMEOUT", "100", 1));
	open_world(&world, &options);
	other.name_length = world.side[0].name_length;
	tell(line, world.side[0].name, NAME);
	hear(line, other.name, NAME);
	world.side[0].to[1] = introduce(&world.side[0], &other);
	role(&world, line);
	close_world(&world);
	_exit(0);
}

/* Sends, and works until it is told to end. Its message may fail. */
static void sends(struct world *world, int line)
{
	struct side *side = &world->side[0];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	char byte;

	POST(world, fi_tsend(side->ep, "abc", 3, NULL, side->to[1], TAG, CONTEXT(1)));
	while (recv(line, &byte, 1, MSG_DONTWAIT) != 1)
		if (fi_cq_read(side->tx, &entry, 1) == -FI_EAVAIL) {
			memset(&error, 0, sizeof(error));
			EQUAL(fi_cq_readerr(side->tx, &error, 0), 1);
		}
}

static void receives(struct world *world, int line)
{
	struct side *side = &world->side[0];
	char here[8] = { 0 };

	POST(world, fi_trecv(side->ep, here, 8, NULL, FI_ADDR_UNSPEC, TAG, 0, CONTEXT(2)));
	DONE(world, side->rx, CONTEXT(2), FI_RECV | FI_TAGGED);
	SAME_BYTES(here, "abc", 3);
	tell(line, "", 1);
}

/* Nothing comes for longer than a message takes. */
static void receives_nothing(struct world *world, int line)
{
	struct side *side = &world->side[0];
	struct fi_cq_tagged_entry entry;
	char here[8];

	POST(world, fi_trecv(side->ep, here, 8, NULL, FI_ADDR_UNSPEC, TAG, 0, CONTEXT(2)));
	for (double end = now() + 1; now() < end; )
		FAILS(fi_cq_read(side->rx, &entry, 1), FI_EAGAIN);
	tell(line, "", 1);
}

static void between(const char *from, const char *to, void (*receiver)(struct world *world, int line))
{
	int pair[2], status;
	pid_t child[2];

	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child[0] = start(from, pair[0], sends);
	child[1] = start(to, pair[1], receiver);
	for (int i = 0; i < 2; i++) {
		OK(close(pair[i]));
		EQUAL(waitpid(child[i], &status, 0), child[i]);
		EQUAL(status, 0);
	}
}

/* Processes with one name reach each other, and those with another name don't. */
static void names(void)
{
	char first[64], second[64];

	if (!is_ours())
		not_offered("FI_EFARS_DEVICE");
	snprintf(first, sizeof(first), "shm:first-%d", (int)getpid());
	snprintf(second, sizeof(second), "shm:second-%d", (int)getpid());
	between(first, first, receives);
	between(first, second, receives_nothing);
	between("shm", first, receives_nothing);
}

/* Between two addresses of this host. */
static void over_tcp(void)
{
	if (!is_ours())
		not_offered("FI_EFARS_DEVICE");
	between("tcp:127.0.0.1", "tcp:127.0.0.2", receives);
}

const struct program devices[] = {
	{ "devices-names", names },
	{ "devices-tcp", over_tcp },
	{ NULL, NULL },
};

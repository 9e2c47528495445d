/* Address vectors: of both types, what they hand out and take back, and named ones. */
#include "program.h"

#include <fcntl.h>
#include <sys/wait.h>

static struct fid_av *open_vector(struct world *world, enum fi_av_type type)
{
	struct fi_av_attr attr = { .type = type, .count = 8 };
	struct fid_av *av;

	OK(fi_av_open(world->domain, &attr, &av, NULL));
	return av;
}

/* Insert, look up, print, remove, insert anew. */
static void round_trip(void)
{
	const enum fi_av_type types[] = { FI_AV_TABLE, FI_AV_MAP };

	for (size_t t = 0; t < COUNT(types); t++) {
		struct options options = { .av = types[t], .sides = 3 };
		struct world world;
		struct fid_av *av;
		char names[SIDES * NAME], name[NAME], text[NAME];
		fi_addr_t peers[SIDES];
		size_t length, each;
		const char *said;

		open_world(&world, &options);
		av = open_vector(&world, types[t]);
		each = world.side[0].name_length;
		for (size_t i = 0; i < SIDES; i++)
			memcpy(names + i * each, world.side[i].name, each);
		memset(peers, 0xff, sizeof(peers));
		EQUAL(fi_av_insert(av, names, SIDES, peers, 0, NULL), SIDES);
		for (size_t i = 0; i < SIDES; i++) {
			if (types[t] == FI_AV_TABLE)
				EQUAL(peers[i], i);
			CHECK(peers[i] != FI_ADDR_NOTAVAIL);
			length = sizeof(name);
			OK(fi_av_lookup(av, peers[i], name, &length));
			EQUAL(length, each);
			if (is_ours())
				SAME_BYTES(name, world.side[i].name, each);
		}
		/* Room for less. */
		length = 4;
		memset(name, 0xee, sizeof(name));
		if (is_ours()) {
			int result = fi_av_lookup(av, peers[0], name, &length);

			CHECK(result == 0 || result == -FI_ETOOSMALL);
			EQUAL(length, each);
			EQUAL((unsigned char)name[4], 0xee);
		}
		length = sizeof(text);
		said = fi_av_straddr(av, world.side[0].name, text, &length);
		CHECK(said && *said);
		if (is_ours()) {
			OK(fi_av_remove(av, &peers[1], 1, 0));
			length = sizeof(name);
			CHECK(fi_av_lookup(av, peers[1], name, &length) < 0);
			CHECK(fi_av_remove(av, &peers[1], 1, 0) < 0);
			length = sizeof(name);
			OK(fi_av_lookup(av, peers[2], name, &length));
			CHECK(fi_av_lookup(av, 77, name, &length) < 0);
			CHECK(fi_av_lookup(av, FI_ADDR_NOTAVAIL, name, &length) < 0);
		} else {
			OK(fi_av_remove(av, &peers[1], 1, 0));
		}
		EQUAL(fi_av_insert(av, world.side[1].name, 1, &peers[1], 0, NULL), 1);
		length = sizeof(name);
		OK(fi_av_lookup(av, peers[1], name, &length));
		OK(fi_close(&av->fid));
		close_world(&world);
	}
}

/* Messages go to the peer that the entry names, in both types; one of a removed peer is refused. */
static void messages_follow(void)
{
	const enum fi_av_type types[] = { FI_AV_TABLE, FI_AV_MAP };

	for (size_t t = 0; t < COUNT(types); t++) {
		struct options options = { .av = types[t], .sides = 3 };
		struct world world;
		struct side *from = &world.side[0];
		char here[8], byte;

		open_world(&world, &options);
		for (int i = 1; i < 3; i++) {
			byte = (char)i;
			POST(&world, fi_inject(from->ep, &byte, 1, from->to[i]));
			POST(&world, fi_recv(world.side[i].ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
			DONE(&world, world.side[i].rx, CONTEXT(i), FI_RECV | FI_MSG);
			EQUAL(here[0], i);
		}
		if (is_ours()) {
			OK(fi_av_remove(from->av, &from->to[2], 1, 0));
			CHECK(fi_send(from->ep, "x", 1, NULL, from->to[2], NULL) < 0);
			CHECK(fi_send(from->ep, "x", 1, NULL, 12345, NULL) < 0);
		}
		close_world(&world);
	}
}

/* A name that isn't an address of this provider. */
static void bad_name(void)
{
	struct options options = { 0 };
	struct world world;
	struct fid_av *av;
	char name[NAME] = { 0 };
	fi_addr_t peer = 5;
	int error = 77, result;

	open_world(&world, &options);
	av = open_vector(&world, FI_AV_TABLE);
	result = fi_av_insert(av, name, 1, &peer, 0, NULL);
	CHECK(result <= 0);
	if (is_ours()) {
		EQUAL(peer, FI_ADDR_NOTAVAIL);
		result = fi_av_insert(av, name, 1, &peer, FI_SYNC_ERR, &error);
		CHECK(result <= 0);
		CHECK(error != 77 && error != 0);
	}
	/* None. */
	CHECK(fi_av_insert(av, world.side[0].name, 0, &peer, 0, NULL) <= 0);
	OK(fi_close(&av->fid));
	close_world(&world);
}

/* A second process reads the vector that the first has made under a name. */
static void named(void)
{
	struct options options = { 0 };
	struct world world;
	char vector_name[64], byte = 0, name[NAME];
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .count = 8, .name = vector_name };
	struct fid_av *av;
	fi_addr_t peers[2];
	size_t length = sizeof(name);
	int there[2], back[2], status, result;
	pid_t child;

	snprintf(vector_name, sizeof(vector_name), "efars-test-%d", (int)getpid());
	OK(pipe(there));
	OK(pipe(back));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		char expected[NAME];
		size_t expected_length;

		/* A fabric of its own. */
		EQUAL(read(there[0], &expected_length, sizeof(expected_length)), sizeof(expected_length));
		EQUAL(read(there[0], expected, expected_length), expected_length);
		open_world(&world, &options);
		attr.flags = FI_READ;
		OK(fi_av_open(world.domain, &attr, &av, NULL));
		OK(fi_av_lookup(av, 1, name, &length));
		EQUAL(length, expected_length);
		if (is_ours())
			SAME_BYTES(name, expected, length);
		OK(fi_close(&av->fid));
		/* It has a writer. */
		attr.flags = 0;
		if (is_ours())
			FAILS(fi_av_open(world.domain, &attr, &av, NULL), FI_EBUSY);
		EQUAL(write(back[1], "", 1), 1);
		close_world(&world);
		_exit(0);
	}
	open_world(&world, &options);
	result = fi_av_open(world.domain, &attr, &av, NULL);
	if (result == -FI_ENOSYS && !is_ours())
		not_offered("named address vectors");
	OK(result);
	for (int i = 0; i < 2; i++)
		EQUAL(fi_av_insert(av, world.side[i].name, 1, &peers[i], 0, NULL), 1);
	EQUAL(peers[1], 1);
	OK(fi_av_lookup(av, 1, name, &length));
	EQUAL(write(there[1], &length, sizeof(length)), sizeof(length));
	EQUAL(write(there[1], world.side[1].name, length), length);
	close(back[1]);
	EQUAL(read(back[0], &byte, 1), 1);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	OK(fi_close(&av->fid));
	/* Without a name there is none to be read. */
	attr.name = NULL;
	attr.flags = FI_READ;
	if (is_ours())
		EQUAL(fi_av_open(world.domain, &attr, &av, NULL), -FI_EINVAL);
	close_world(&world);
}

/* Servers that aren't there are waited for together, not one after the other. */
static void nobody(void)
{
	enum { PLACES = 8 };
	struct options options = { 0 };
	struct world world;
	struct fid_av *av;
	fi_addr_t peers[PLACES];
	int errors[PLACES] = { 0 };
	char *places;
	double before;

	if (!is_ours())
		not_offered("addresses that are asked for");
	open_world(&world, &options);
	av = open_vector(&world, FI_AV_TABLE);
	places = nobodies(&world, PLACES);
	before = now();
	EQUAL(fi_av_insert(av, places, PLACES, peers, FI_SYNC_ERR, errors), 0);
	CHECK(now() - before < 8);
	for (int i = 0; i < PLACES; i++) {
		EQUAL(peers[i], FI_ADDR_NOTAVAIL);
		CHECK(errors[i] > 0);
	}
	free(places);
	OK(fi_close(&av->fid));
	close_world(&world);
}

const struct program vectors[] = {
	{ "vectors-round-trip", round_trip },
	{ "vectors-messages-follow", messages_follow },
	{ "vectors-bad-name", bad_name },
	{ "vectors-nobody", nobody },
	{ "vectors-named", named },
	{ NULL, NULL },
};

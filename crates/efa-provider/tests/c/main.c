/* programs NAME: runs one program, or one after the other those of a group, as `waits`. Without a name, lists them. */
#include "program.h"

extern const struct program discovery[], messages[], matching[], completions[], waits[], events[], vectors[], regions[],
	rma[], atomics[], connections[], settings[], versions[], refused[], processes[], threads[], lifetimes[],
	libfabrics[], exits[], sleepers[], devices[], shared[];

static const struct program *const all[] = {
	discovery, messages, matching, completions, waits, events, vectors, regions, rma, atomics, connections, settings,
	versions, refused, processes, threads, lifetimes, libfabrics, exits, sleepers, devices, shared,
};

/* Whether a program has this name, or is of this group. */
static bool is_named(const char *name, const char *by)
{
	size_t length = strlen(by);

	return !strncmp(name, by, length) && (!name[length] || name[length] == '-');
}

int main(int argc, char **argv)
{
	bool found = argc < 2;

	for (size_t i = 0; i < COUNT(all); i++)
		for (const struct program *program = all[i]; program->name; program++)
			if (argc < 2)
				puts(program->name);
			else if (is_named(program->name, argv[1])) {
				program->run();
				found = true;
			}
	if (found)
		return 0;
	fprintf(stderr, "there is no program %s\n", argv[1]);
	return 2;
}

/* programs NAME: runs one program. Without a name, lists them. */
#include "program.h"

extern const struct program discovery[], messages[], matching[], completions[], waits[], events[], vectors[], regions[],
	rma[], atomics[], connections[], refused[], processes[];

static const struct program *const all[] = {
	discovery, messages, matching, completions, waits, events, vectors, regions, rma, atomics, connections, refused,
	processes,
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < COUNT(all); i++)
		for (const struct program *program = all[i]; program->name; program++)
			if (argc < 2)
				puts(program->name);
			else if (!strcmp(argv[1], program->name)) {
				program->run();
				return 0;
			}
	if (argc < 2)
		return 0;
	fprintf(stderr, "there is no program %s\n", argv[1]);
	return 2;
}

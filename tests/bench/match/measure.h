/* Common code of the C programs of `cargo xtask bench match`.
 *
 *     PROGRAM posted|unexpected DEPTH ROUNDS
 *
 * posted:     DEPTH receives wait. A round sends a message for one of them, chosen at
 *             random, waits for both completions, and posts that receive again.
 * unexpected: DEPTH messages wait. A round receives one of them, chosen at random, and sends that
 *             message again.
 *
 * Prints the median over WINDOWS windows of the nanoseconds of a round. callgrind counts the
 * function `measured_rounds`.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WINDOWS 8
#define PAYLOAD 8

struct work {
	int unexpected;
	int depth;
	int rounds;
};

/* Exits unless the arguments are as above. */
static struct work work_from(int argc, char **argv)
{
	struct work work = { 0 };

	if (argc == 4) {
		work.unexpected = strcmp(argv[1], "unexpected") == 0;
		work.depth = atoi(argv[2]);
		work.rounds = atoi(argv[3]);
	}
	if (work.depth < 1 || work.rounds < WINDOWS ||
	    (!work.unexpected && strcmp(argv[1], "posted") != 0)) {
		fprintf(stderr, "usage: %s posted|unexpected DEPTH ROUNDS (at least %d)\n", argv[0],
			WINDOWS);
		exit(2);
	}
	return work;
}

/* The same numbers in all programs. */
static int chosen(int depth)
{
	static uint64_t state = 0x5851f42dda942042u;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (int)((state >> 33) % (uint64_t)depth);
}

/* One round with this tag; the library's part. */
static void round_of(const struct work *work, int tag);

__attribute__((noinline)) void measured_rounds(const struct work *work, int rounds)
{
	for (int n = 0; n < rounds; n++)
		round_of(work, chosen(work->depth));
}

static int by_value(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

static void measure(const struct work *work)
{
	double windows[WINDOWS];
	int rounds = work->rounds / WINDOWS;

	/* The first round may set up tables that all others use. */
	round_of(work, chosen(work->depth));
	for (int n = 0; n < WINDOWS; n++) {
		struct timespec start, end;

		clock_gettime(CLOCK_MONOTONIC, &start);
		measured_rounds(work, rounds);
		clock_gettime(CLOCK_MONOTONIC, &end);
		windows[n] = ((double)(end.tv_sec - start.tv_sec) * 1e9 +
			      (double)(end.tv_nsec - start.tv_nsec)) / rounds;
	}
	qsort(windows, WINDOWS, sizeof(*windows), by_value);
	printf("%.1f\n", (windows[WINDOWS / 2 - 1] + windows[WINDOWS / 2]) / 2);
}

#endif

/* What the C programs of `cargo xtask bench peers` have in common: the exchanges of src/measure.rs, which
 * describes them. A program defines the functions that are declared here, and calls `client` or `server`.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* MAX_WINDOW: the most messages under way. LINE: the least bytes between two buffers. SENT: every byte that
 * is sent.
 */
enum { MAX_WINDOW = 64, LINE = 64, SENT = 0x5a };
#define MOST_MESSAGES (1ull << 24)

/* Starts a receive or a send. A slot has one of each at a time. */
static void start_receive(char *buffer, size_t size, unsigned slot);
static void start_send(char *buffer, size_t size, unsigned slot);
/* Wait until the slot's receive or send has completed. */
static void await_receive(unsigned slot);
static void await_send(unsigned slot);
/* A number for the other side, outside of the messages that are measured. */
static void tell(uint64_t number);
static uint64_t hear(void);

struct point {
	int is_stream, has_each;
	size_t size;
	unsigned window;
	const char *text;
};

static char *out, *in;

static void fail(const char *what, const char *text)
{
	fprintf(stderr, "%s: %s\n", what, text);
	exit(1);
}

/* latency:8:1:one, stream:4096:16:each */
static struct point parse(const char *text)
{
	struct point point = { .text = text };
	char what[8], form[8];
	int length = -1;

	if (sscanf(text, "%7[a-z]:%zu:%u:%7[a-z]%n", what, &point.size, &point.window, form,
		   &length) != 4 ||
	    length < 0 || text[length] || !point.window || point.window > MAX_WINDOW)
		fail("not a point", text);
	point.is_stream = !strcmp(what, "stream");
	point.has_each = !strcmp(form, "each");
	return point;
}

static size_t stride(const struct point *point)
{
	return point->size ? (point->size + LINE - 1) / LINE * LINE : LINE;
}

static char *buffer(char *memory, const struct point *point, uint64_t slot)
{
	return memory + (point->has_each ? slot * stride(point) : 0);
}

/* Memory of all buffers, touched. */
static void allocate(char **points, int count)
{
	size_t most = LINE;

	for (int n = 0; n < count; n++) {
		struct point point = parse(points[n]);
		size_t needed = stride(&point) * (point.has_each ? point.window : 1);

		if (needed > most)
			most = needed;
	}
	if (posix_memalign((void **)&out, 4096, most) || posix_memalign((void **)&in, 4096, most))
		fail("out of memory", "");
	memset(out, SENT, most);
	memset(in, 1, most);
}

static double seconds(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* Exchanges so many messages, or rounds. Returns the seconds. */
static double exchange(const struct point *point, uint64_t count)
{
	unsigned window = point->window;
	uint64_t n, first;
	double begin;

	tell(count);
	hear();
	begin = seconds();
	if (point->is_stream) {
		for (n = 0; n < count; n++) {
			unsigned slot = (unsigned)(n % window);

			if (n >= window)
				await_send(slot);
			start_send(buffer(out, point, slot), point->size, slot);
		}
		first = count > window ? count - window : 0;
		for (n = first; n < count; n++)
			await_send((unsigned)(n % window));
		hear();
	} else {
		for (n = 0; n < count; n++) {
			/* The receive is posted behind the send, as in ucx_perftest: the message is on its way meanwhile. */
			start_send(out, point->size, 0);
			start_receive(in, point->size, 0);
			await_receive(0);
			await_send(0);
		}
	}
	return seconds() - begin;
}

static void client(char **points, int points_count, double least)
{
	allocate(points, points_count);
	for (int p = 0; p < points_count; p++) {
		struct point point = parse(points[p]);
		uint64_t count = point.window;
		double time;

		/* Not measured: the first messages set up what others use. */
		exchange(&point, count);
		for (;;) {
			double grow;

			time = exchange(&point, count);
			if (time >= least || count >= MOST_MESSAGES)
				break;
			grow = time > 0 ? least * 1.3 / time : 16;
			count = (uint64_t)((double)count * (grow < 2 ? 2 : grow > 16 ? 16 : grow));
		}
		tell(0);
		hear();
		printf("%s %zu %u %s %.6e\n", point.is_stream ? "stream" : "latency", point.size,
		       point.window, point.has_each ? "each" : "one",
		       time / (double)count / (point.is_stream ? 1 : 2));
		fflush(stdout);
	}
}

/* All that was received has the right bytes. */
static void verify(const struct point *point)
{
	unsigned slots = point->has_each ? point->window : 1;

	for (unsigned slot = 0; slot < slots && point->size; slot++) {
		char *bytes = buffer(in, point, slot);

		if (bytes[0] != SENT || bytes[point->size / 2] != SENT || bytes[point->size - 1] != SENT)
			fail("wrong bytes arrived", point->text);
	}
	memset(in, 1, slots * stride(point));
}

static void server(char **points, int points_count)
{
	allocate(points, points_count);
	for (int p = 0; p < points_count; p++) {
		struct point point = parse(points[p]);
		unsigned window = point.window;
		uint64_t count, n;

		while ((count = hear())) {
			for (n = 0; n < count && n < window; n++)
				start_receive(buffer(in, &point, n), point.size, (unsigned)n);
			tell(1);
			for (n = 0; n < count; n++) {
				unsigned slot = (unsigned)(n % window);

				await_receive(slot);
				if (!point.is_stream)
					start_send(out, point.size, slot);
				if (n + window < count)
					start_receive(buffer(in, &point, slot), point.size, slot);
				if (!point.is_stream)
					await_send(slot);
			}
			if (point.is_stream)
				tell(1);
		}
		verify(&point);
		tell(1);
	}
}

#endif

/* A tagged ping-pong, messages in a row, and reads that find nothing, on a provider of libfabric. The steps of `round`
 * are those of ../vs-libfabric/src/main.rs. Arguments:
 *
 *   client|server DIR PROVIDER TEST COUNT
 *
 * Both sides write their address into the directory. Prints `messages M ns T`: the messages in a row that took the
 * shortest time, which another program on the processor doesn't lengthen, and that time. The process exits without
 * closing anything.
 *
 *   round   post a receive, inject 8 bytes, read                     COUNT rounds
 *   told    the same; the client reads when the message is there     COUNT rounds
 *   rate    the client sends 8 bytes, at most 64 under way           COUNT messages
 *   large   post a receive, send 1 MiB, read                         COUNT rounds
 *   reads   after a round, the client reads in vain                  COUNT reads
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../tagged.h"

enum { LAST = TAG + 1, WINDOW = 64, LARGE = 1 << 20 };
/* Messages that are timed at once: some 0.1 to 0.5 ms. */
enum { ROUND_LAP = 512, RATE_LAP = 2048, LARGE_LAP = 8 };

static struct lap {
	uint64_t length, began, began_at, shortest;
} lap;

static uint64_t now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

/* So many messages have been sent and received since the first. */
static void passed(uint64_t messages)
{
	uint64_t at;

	if (messages && messages < lap.began + lap.length)
		return;
	at = now();
	/* A lap may be some messages longer. */
	if (messages && (at - lap.began_at) * lap.length / (messages - lap.began) < lap.shortest)
		lap.shortest = (at - lap.began_at) * lap.length / (messages - lap.began);
	lap.began = messages;
	lap.began_at = at;
}

static void post(void *buffer, size_t length, uint64_t tag, struct fi_context *context)
{
	ssize_t code;

	do {
		code = fi_trecv(ep, buffer, length, NULL, FI_ADDR_UNSPEC, tag, 0, context);
		if (code != -FI_EAGAIN)
			break;
		fi_cq_read(cq, NULL, 0);
	} while (1);
	check(code, "fi_trecv");
}

static ssize_t read_some(struct fi_cq_tagged_entry *entries, size_t most)
{
	ssize_t count;

	count = fi_cq_read(cq, entries, most);
	if (count == -FI_EAGAIN)
		return 0;
	if (count == -FI_EAVAIL) {
		struct fi_cq_err_entry error = { 0 };

		fi_cq_readerr(cq, &error, 0);
		check(-error.err, "a completion");
	}
	check(count, "fi_cq_read");
	return count;
}

static uint64_t *await_message(uint64_t *buffer, uint64_t round)
{
	struct fi_cq_tagged_entry entry;

	do {
		while (!read_some(&entry, 1))
			;
	} while (!(entry.flags & FI_RECV));
	if (*buffer != round) {
		fprintf(stderr, "round %lu brought %lu\n", (unsigned long)round,
			(unsigned long)*buffer);
		exit(1);
	}
	return buffer;
}

/* The number of messages that the server has sent, in memory that both sides map. With it the client needn't look for
 * a message in vain, so that its instructions don't depend on how long the server takes.
 */
static _Atomic uint64_t *open_told(const char *directory)
{
	_Atomic uint64_t *told;
	char place[512];
	int file;

	snprintf(place, sizeof(place), "%s/told", directory);
	file = open(place, O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, sizeof(*told))) {
		perror(place);
		exit(1);
	}
	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (told == MAP_FAILED) {
		perror(place);
		exit(1);
	}
	close(file);
	return told;
}

/* `told` may be null. */
static void rounds(int is_client, uint64_t count, _Atomic uint64_t *told)
{
	static uint64_t buffer;
	static struct fi_context context;
	uint64_t round;

	for (round = 0; round < count; round++) {
		passed(2 * round);
		post(&buffer, sizeof(buffer), TAG, &context);
		if (is_client)
			inject(round);
		while (is_client && told && atomic_load_explicit(told, memory_order_acquire) <= round)
			;
		await_message(&buffer, round);
		if (!is_client)
			inject(round);
		if (!is_client && told)
			atomic_store_explicit(told, round + 1, memory_order_release);
	}
}

static void send_large(uint64_t *buffer, struct fi_context *context)
{
	ssize_t code;

	while ((code = fi_tsend(ep, buffer, LARGE, NULL, peer, TAG, context)) == -FI_EAGAIN)
		fi_cq_read(cq, NULL, 0);
	check(code, "fi_tsend");
}

/* Reads until the receive and the send of a round have completed. */
static void large_rounds(int is_client, uint64_t count)
{
	static struct fi_context sent, received;
	uint64_t *out = aligned_alloc(4096, LARGE), *in = aligned_alloc(4096, LARGE), round;
	struct fi_cq_tagged_entry entry;
	int wanted;

	memset(out, 1, LARGE);
	memset(in, 1, LARGE);
	for (round = 0; round < count; round++) {
		passed(2 * round);
		post(in, LARGE, TAG, &received);
		wanted = 2;
		if (is_client) {
			out[0] = out[LARGE / 8 - 1] = round;
			send_large(out, &sent);
		}
		while (wanted) {
			if (!read_some(&entry, 1))
				continue;
			wanted--;
			if (!is_client && (entry.flags & FI_RECV)) {
				out[0] = out[LARGE / 8 - 1] = round;
				send_large(out, &sent);
			}
		}
		if (in[0] != round || in[LARGE / 8 - 1] != round) {
			fprintf(stderr, "round %lu brought something else\n", (unsigned long)round);
			exit(1);
		}
	}
}

static void many(int is_client, uint64_t count)
{
	static uint64_t buffers[WINDOW], last;
	static struct fi_context contexts[WINDOW], of_last;
	struct fi_cq_tagged_entry entries[16];
	uint64_t started = 0, ended = 0;
	bool has_last = !is_client;
	ssize_t found, code;

	if (is_client)
		post(&last, sizeof(last), LAST, &of_last);
	while (ended < count || !has_last) {
		while (started < count && started - ended < WINDOW) {
			unsigned slot = started % WINDOW;

			if (is_client) {
				code = fi_tsend(ep, &buffers[slot], 8, NULL, peer, TAG, &contexts[slot]);
				if (code == -FI_EAGAIN)
					break;
				check(code, "fi_tsend");
			} else {
				post(&buffers[slot], 8, TAG, &contexts[slot]);
			}
			started++;
		}
		passed(ended);
		found = read_some(entries, 16);
		/* The last message may come with the last sends, or alone. */
		for (ssize_t i = 0; i < found; i++)
			if (entries[i].op_context == &of_last)
				has_last = true;
			else
				ended++;
	}
	if (!is_client) {
		code = fi_tinject(ep, &last, sizeof(last), peer, LAST);
		check(code, "fi_tinject");
	}
}

/* What it does is counted. */
static __attribute__((noinline)) void in_vain(uint64_t count)
{
	struct fi_cq_tagged_entry entry;

	while (count--)
		fi_cq_read(cq, &entry, 1);
}

/* Works until a file of the directory is there, or isn't. */
static void work_until(const char *directory, const char *file, int is_there)
{
	struct timespec pause = { .tv_nsec = 2000000 };
	time_t until = time(NULL) + ADDRESS_TIMEOUT;
	char place[512];

	snprintf(place, sizeof(place), "%s/%s", directory, file);
	while ((access(place, F_OK) == 0) != is_there && time(NULL) < until) {
		fi_cq_read(cq, NULL, 0);
		nanosleep(&pause, NULL);
	}
}

/* Makes a file of the directory. */
static void make(const char *directory, const char *file)
{
	char place[512];
	FILE *made;

	snprintf(place, sizeof(place), "%s/%s", directory, file);
	made = fopen(place, "w");
	if (!made) {
		perror(place);
		exit(1);
	}
	fclose(made);
}

/* Does what is left to be done after a message. */
static void settle(void)
{
	int round;

	for (round = 0; round < LAST_READS; round++)
		fi_cq_read(cq, NULL, 0);
}

/* Takes all that the client has sent, says so, and sends nothing until the client has removed its address. */
static void idle(const char *directory)
{
	work_until(directory, "sent", 1);
	settle();
	make(directory, "idle");
	work_until(directory, "client", 0);
}

int main(int argc, char **argv)
{
	_Atomic uint64_t *told = NULL;
	int is_client;
	uint64_t count;
	const char *test;

	if (argc != 6) {
		fprintf(stderr, "client|server DIR PROVIDER TEST COUNT are expected\n");
		return 1;
	}
	is_client = !strcmp(argv[1], "client");
	test = argv[4];
	count = strtoull(argv[5], NULL, 10);
	open_endpoint(argv[3], FI_THREAD_DOMAIN);
	meet(argv[2], argv[1], is_client ? "server" : "client");
	/* The first round sets up what each side knows of the other. */
	if (!strcmp(test, "told"))
		told = open_told(argv[2]);
	else if (strcmp(test, "round"))
		rounds(is_client, 1, NULL);
	lap = (struct lap){ .shortest = UINT64_MAX, .length = ROUND_LAP };
	if (!strcmp(test, "rate"))
		lap.length = RATE_LAP;
	if (!strcmp(test, "large"))
		lap.length = LARGE_LAP;
	if (told || !strcmp(test, "round"))
		rounds(is_client, count, told);
	else if (!strcmp(test, "rate"))
		many(is_client, count);
	else if (!strcmp(test, "large"))
		large_rounds(is_client, count);
	else if (!strcmp(test, "reads") && is_client) {
		/* However late the server is: a read costs more as long as something may come, or wasn't taken. */
		settle();
		make(argv[2], "sent");
		work_until(argv[2], "idle", 1);
		settle();
		in_vain(count);
	} else if (!strcmp(test, "reads"))
		idle(argv[2]);
	printf("messages %lu ns %lu\n", (unsigned long)lap.length, (unsigned long)lap.shortest);
	fflush(stdout);
	if (is_client && !strcmp(test, "reads")) {
		char place[512];

		snprintf(place, sizeof(place), "%s/client", argv[2]);
		unlink(place);
	}
	if (!is_client)
		settle();
	_exit(0);
}

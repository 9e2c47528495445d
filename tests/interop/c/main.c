/* A peer on libfabric: reads commands, writes results, and polls in between.
 *
 *     stdin ──► command ──► operations ──► libfabric
 *                               ▲              │
 *     stdout ◄── report ◄───────┴── progress ◄─┘
 *
 * The commands: ../README.md.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "endpoint.h"
#include "operation.h"
#include "operations.h"
#include "report.h"

/* Empty polls after which the process yields the processor. */
enum { EMPTY_POLLS = 200, NAP_MS = 1 };

static struct endpoint endpoint;
static bool idle;

/* poll rounds=: polls the queue so many times. */
static void run_poll(struct command *command)
{
	uint64_t rounds = command_number_or(command, "rounds", 1);

	for (uint64_t i = 0; i < rounds; i++)
		operations_progress(&endpoint);
	say("ok");
}

static void run_close(void)
{
	endpoint_stop(&endpoint);
	operations_end(); /* Posted buffers belong to the endpoint until it is closed. */
	endpoint_close(&endpoint);
	say("closed");
}

/* Runs one line; returns false at the end. */
static bool run(char *line)
{
	struct command command;

	if (!command_parse(&command, line))
		die("can't read this line");
	if (strcmp(command.verb, "quit") == 0)
		return false;
	if (strcmp(command.verb, "open") == 0)
		endpoint = endpoint_open(&command);
	else if (!endpoint.ep)
		die("%s: nothing is open", command.verb);
	else if (strcmp(command.verb, "peer") == 0)
		say("ok peer=%lu", (unsigned long)endpoint_insert(&endpoint, command_text(&command, "address")));
	else if (strcmp(command.verb, "idle") == 0)
		say("ok"), idle = true;
	else if (strcmp(command.verb, "busy") == 0)
		say("ok"), idle = false;
	else if (strcmp(command.verb, "poll") == 0)
		run_poll(&command);
	else if (strcmp(command.verb, "close") == 0)
		run_close();
	else if (!operations_run(&endpoint, &command))
		die("%s: no such command", command.verb);
	if (command_unused(&command))
		die("%s: %s= is not understood", command.verb, command_unused(&command));
	return true;
}

int main(void)
{
	static char input[1 << 16];
	size_t filled = 0;
	unsigned quiet = 0;

	for (;;) {
		struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
		bool working = endpoint.ep && !idle;
		int wait = !working ? -1 : quiet < EMPTY_POLLS ? 0 : NAP_MS;
		ssize_t count;
		char *end;

		if (working) {
			quiet = operations_progress(&endpoint) ? 0 : quiet + 1;
			endpoint_say_events(&endpoint);
		}
		if (poll(&in, 1, wait) <= 0)
			continue;
		count = read(STDIN_FILENO, input + filled, sizeof(input) - 1 - filled);
		if (filled == sizeof(input) - 1)
			die("a line of more than %zu bytes", filled);
		if (count <= 0)
			return EXIT_SUCCESS;
		filled += (size_t)count;
		input[filled] = '\0';
		while ((end = strchr(input, '\n'))) {
			*end++ = '\0';
			if (!run(input))
				return EXIT_SUCCESS;
			filled -= (size_t)(end - input);
			memmove(input, end, filled + 1);
		}
		quiet = 0;
	}
}

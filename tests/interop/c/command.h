/* One line of the command language: a verb, then key=value words and flags. See ../README.md. */
#ifndef COMMAND_H
#define COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_WORDS = 24 };

struct command {
	const char *verb;
	struct word {
		const char *key;
		const char *value; /* NULL for a flag */
		bool used;
	} words[MAX_WORDS];
	size_t count;
};

/* Takes a line apart, in place. */
bool command_parse(struct command *command, char *line);

/* The value of a key; NULL if it isn't there. */
const char *command_text(struct command *command, const char *key);

/* Whether a flag is there. */
bool command_flag(struct command *command, const char *key);

/* Whether there is a number (decimal or 0x…) for a key, which then lies in `number`. A word that is
 * no number ends the process. */
bool command_number(struct command *command, const char *key, uint64_t *number);

/* The number, or `otherwise` if there is none. */
uint64_t command_number_or(struct command *command, const char *key, uint64_t otherwise);

/* The first word that nobody asked for: a mistake of the scenario. NULL if there is none. */
const char *command_unused(const struct command *command);

#endif

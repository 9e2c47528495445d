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

/* Parses a line, in place. */
bool command_parse(struct command *command, char *line);

/* The value of a key; NULL if absent. */
const char *command_text(struct command *command, const char *key);

/* Whether a flag is given. */
bool command_flag(struct command *command, const char *key);

/* Whether a key has a number (decimal or 0x…), stored in `number`. Any other word ends the process. */
bool command_number(struct command *command, const char *key, uint64_t *number);

/* The number of a key, or `otherwise` if absent. */
uint64_t command_number_or(struct command *command, const char *key, uint64_t otherwise);

/* The first word that the command didn't read: a mistake of the scenario. NULL if none. */
const char *command_unused(const struct command *command);

#endif

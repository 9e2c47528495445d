#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

bool command_parse(struct command *command, char *line)
{
	char *rest = NULL;

	memset(command, 0, sizeof(*command));
	command->verb = strtok_r(line, " \n", &rest);
	if (!command->verb)
		return false;
	for (char *text = strtok_r(NULL, " \n", &rest); text; text = strtok_r(NULL, " \n", &rest)) {
		char *value = strchr(text, '=');

		if (command->count == MAX_WORDS)
			return false;
		if (value)
			*value++ = '\0';
		command->words[command->count++] = (struct word){ .key = text, .value = value };
	}
	return true;
}

static struct word *find(struct command *command, const char *key)
{
	for (size_t i = 0; i < command->count; i++) {
		if (strcmp(command->words[i].key, key) == 0) {
			command->words[i].used = true;
			return &command->words[i];
		}
	}
	return NULL;
}

const char *command_text(struct command *command, const char *key)
{
	const struct word *word = find(command, key);

	return word ? word->value : NULL;
}

bool command_flag(struct command *command, const char *key)
{
	const struct word *word = find(command, key);

	return word && !word->value;
}

bool command_number(struct command *command, const char *key, uint64_t *number)
{
	const char *text = command_text(command, key);
	char *end;

	if (!text)
		return false;
	errno = 0;
	*number = strtoull(text, &end, 0);
	if (errno || end == text || *end)
		die("%s=%s is no number", key, text);
	return true;
}

uint64_t command_number_or(struct command *command, const char *key, uint64_t otherwise)
{
	uint64_t number = otherwise;

	command_number(command, key, &number);
	return number;
}

const char *command_unused(const struct command *command)
{
	for (size_t i = 0; i < command->count; i++) {
		if (!command->words[i].used)
			return command->words[i].key;
	}
	return NULL;
}

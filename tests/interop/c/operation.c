#include "operation.h"

#include <inttypes.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "operations.h"
#include "report.h"

enum { MAX_OPERATIONS = 8192 };

static struct operation *operations[MAX_OPERATIONS];

struct operation **operation_slot(struct command *command)
{
	uint64_t id = command_number_or(command, "id", MAX_OPERATIONS);

	if (id >= MAX_OPERATIONS)
		die("%s: id= is missing or not below %d", command->verb, MAX_OPERATIONS);
	return &operations[id];
}

struct operation *operation_existing(struct command *command)
{
	struct operation *operation = *operation_slot(command);

	if (!operation)
		die("%s: no such operation", command->verb);
	return operation;
}

void operation_forget(struct operation **slot)
{
	if (!*slot)
		return;
	memory_free(&(*slot)->memory);
	memory_free(&(*slot)->result);
	memory_free(&(*slot)->compare);
	free((*slot)->parts);
	free(*slot);
	*slot = NULL;
}

struct operation *operation_new(struct endpoint *endpoint, struct command *command, uint64_t access)
{
	struct operation **slot = operation_slot(command), *operation = calloc(1, sizeof(*operation));
	bool left_to_libfabric = endpoint->registers && (access == FI_SEND || access == FI_RECV);

	if (!operation)
		die("no memory");
	operation_forget(slot);
	*slot = operation;
	snprintf(operation->name, sizeof(operation->name), "%td", slot - operations);
	operation->memory = memory_new(left_to_libfabric ? NULL : endpoint->domain,
				       command_number_or(command, "size", 0), access);
	return operation;
}

void operations_end(void)
{
	for (size_t i = 0; i < MAX_OPERATIONS; i++)
		operation_forget(&operations[i]);
}

void operation_say_started(struct operation **slot, ssize_t result)
{
	if (result == 0) {
		say("ok");
	} else {
		say("refused error=%zd", -result);
		operation_forget(slot);
	}
}

bool operation_is_busy(struct endpoint *endpoint, ssize_t result)
{
	if (result != -FI_EAGAIN)
		return false;
	operations_progress(endpoint);
	return true;
}

void say_damage(struct damage damage)
{
	if (damage.where)
		say("damaged where=%s at=%zu expected=0x%02x found=0x%02x", damage.where, damage.at,
		    damage.expected, damage.found);
	else
		say("intact");
}

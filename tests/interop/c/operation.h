/* Operations by their ids, and what starts them has in common. */
#ifndef OPERATION_H
#define OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "command.h"
#include "endpoint.h"
#include "memory.h"

/* An operation, or memory that is exposed to peers; it lives until it is checked or forgotten.
 * libfabric's context of an operation is its address. */
struct operation {
	char name[24]; /* its id as text */
	struct memory memory;
	/* What an atomic operation brings back, or compares with. */
	struct memory result, compare;
	/* Parts of a multi-receive buffer that messages lie in, in the order of their completions. */
	struct part {
		size_t offset, length;
	} *parts;
	size_t part_count;
	bool exposed;
};

enum { MAX_PARTS = 512 };

/* The place for the operation that the command names by id=. */
struct operation **operation_slot(struct command *command);

/* The operation there, which must be. */
struct operation *operation_existing(struct command *command);

/* A new one with memory of size= bytes, in place of one that is there. */
struct operation *operation_new(struct endpoint *endpoint, struct command *command, uint64_t access);

/* Forgets one, if there is one. */
void operation_forget(struct operation **slot);

/* Forgets all. */
void operations_end(void);

/* Says what came of starting an operation. One that wasn't started is forgotten. */
void operation_say_started(struct operation **slot, ssize_t result);

/* Whether the endpoint was busy, and the operation is to be tried again; with a look at the queue. */
bool operation_is_busy(struct endpoint *endpoint, ssize_t result);

/* Says whether memory is as it should be. */
void say_damage(struct damage damage);

/* The commands of messages.c and remote.c; false if it is none of theirs. */
bool messages_run(struct endpoint *endpoint, struct command *command);
bool remote_run(struct endpoint *endpoint, struct command *command);

#endif

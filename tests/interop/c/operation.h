/* Operations by id, and helpers to start them. */
#ifndef OPERATION_H
#define OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "command.h"
#include "endpoint.h"
#include "memory.h"

/* An operation, or memory exposed to peers; kept until `check` or `forget`.
 * libfabric's context of an operation is its address. */
struct operation {
	char name[24]; /* its id as text */
	struct memory memory;
	/* Result of an atomic, or what it compares with. */
	struct memory result, compare;
	/* Messages in a multi-receive buffer, in the order of their completions. */
	struct part {
		size_t offset, length;
	} *parts;
	size_t part_count;
	bool exposed;
};

enum { MAX_PARTS = 512 };

/* The slot of the operation named by id=. */
struct operation **operation_slot(struct command *command);

/* The operation in the slot, which must exist. */
struct operation *operation_existing(struct command *command);

/* Creates an operation with memory of size= bytes, or replaces it. */
struct operation *operation_new(struct endpoint *endpoint, struct command *command, uint64_t access);

/* Drops an operation, if it exists. */
void operation_forget(struct operation **slot);

/* Drops all. */
void operations_end(void);

/* Prints the result of starting an operation. One that wasn't started is dropped. */
void operation_say_started(struct operation **slot, ssize_t result);

/* Whether the endpoint was busy and the operation is to be tried again; polls the queue. */
bool operation_is_busy(struct endpoint *endpoint, ssize_t result);

/* Prints whether memory is intact. */
void say_damage(struct damage damage);

/* The commands of messages.c and remote.c; false for any other. */
bool messages_run(struct endpoint *endpoint, struct command *command);
bool remote_run(struct endpoint *endpoint, struct command *command);

#endif

/* Remote memory: expose, write, read, atomic, show, forget. */
#include <inttypes.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operation.h"
#include "report.h"

/* expose id= size= [seed=]: memory that peers may read and write. */
static void run_expose(struct endpoint *e, struct command *command)
{
	struct operation *operation = operation_new(e, command, FI_REMOTE_READ | FI_REMOTE_WRITE);
	struct memory *m = &operation->memory;
	uint64_t seed;

	operation->exposed = true;
	if (command_number(command, "seed", &seed))
		memory_fill(m, seed);
	say("exposed address=0x%" PRIxPTR " key=0x%" PRIx64, (uintptr_t)m->bytes, fi_mr_key(m->region));
}

/* Target of an operation: to=, address=, key=. */
struct target {
	fi_addr_t peer;
	uint64_t address, key;
};

static struct target target(struct command *command)
{
	return (struct target){
		.peer = command_number_or(command, "to", 0),
		.address = command_number_or(command, "address", 0),
		.key = command_number_or(command, "key", 0),
	};
}

static uint64_t completion_flags(struct command *command)
{
	uint64_t flags = FI_COMPLETION;

	if (command_flag(command, "delivery"))
		flags |= FI_DELIVERY_COMPLETE;
	if (command_flag(command, "inject"))
		flags |= FI_INJECT;
	return flags;
}

/* write id= to= size= seed= address= key= [data=] [delivery] [inject], and read, without the data. */
static void run_rma(struct endpoint *e, struct command *command, bool is_write)
{
	struct operation *operation = operation_new(e, command, is_write ? FI_WRITE : FI_READ);
	struct memory *m = &operation->memory;
	struct target to = target(command);
	struct iovec iov = { m->bytes, m->size };
	struct fi_rma_iov remote = { .addr = to.address, .len = m->size, .key = to.key };
	void *desc = memory_desc(m);
	struct fi_msg_rma message = {
		.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = to.peer,
		.rma_iov = &remote, .rma_iov_count = 1, .context = operation,
	};
	uint64_t flags = completion_flags(command), seed;
	ssize_t result;

	if (command_number(command, "data", &message.data))
		flags |= FI_REMOTE_CQ_DATA;
	if (command_number(command, "seed", &seed))
		memory_fill(m, seed);
	do {
		result = is_write ? fi_writemsg(e->ep, &message, flags) : fi_readmsg(e->ep, &message, flags);
	} while (operation_is_busy(e, result));
	operation_say_started(operation_slot(command), result);
}

/* atomic id= to= size= seed= address= key= type= op= [delivery]: `size` bytes of elements. With
 * `fetch` or `compare-seed=` they return the previous values. */
static void run_atomic(struct endpoint *e, struct command *command)
{
	struct operation *operation = operation_new(e, command, FI_WRITE);
	struct memory *m = &operation->memory;
	struct target to = target(command);
	enum fi_datatype type = (enum fi_datatype)command_number_or(command, "type", FI_UINT64);
	enum fi_op op = (enum fi_op)command_number_or(command, "op", FI_SUM);
	size_t width = command_number_or(command, "width", 8), count = m->size / width;
	struct fi_ioc operand = { .addr = m->bytes, .count = count };
	struct fi_rma_ioc remote = { .addr = to.address, .count = count, .key = to.key };
	void *desc = memory_desc(m);
	struct fi_msg_atomic message = {
		.msg_iov = &operand, .desc = &desc, .iov_count = 1, .addr = to.peer, .rma_iov = &remote,
		.rma_iov_count = 1, .datatype = type, .op = op, .context = operation,
	};
	uint64_t flags = completion_flags(command), seed = 0;
	bool compares = command_number(command, "compare-seed", &seed);
	bool fetches = command_flag(command, "fetch") || compares;
	struct fi_ioc result = { .count = count }, compare = { .count = count };
	void *result_desc = NULL, *compare_desc = NULL;
	ssize_t started;

	memory_fill(m, command_number_or(command, "seed", 0));
	if (fetches) {
		operation->result = memory_new(e->domain, m->size, FI_READ);
		result.addr = operation->result.bytes;
		result_desc = memory_desc(&operation->result);
	}
	if (compares) {
		operation->compare = memory_new(e->domain, m->size, FI_WRITE);
		memory_fill(&operation->compare, seed);
		compare.addr = operation->compare.bytes;
		compare_desc = memory_desc(&operation->compare);
	}
	do {
		if (compares)
			started = fi_compare_atomicmsg(e->ep, &message, &compare, &compare_desc, 1, &result,
						       &result_desc, 1, flags);
		else if (fetches)
			started = fi_fetch_atomicmsg(e->ep, &message, &result, &result_desc, 1, flags);
		else
			started = fi_atomicmsg(e->ep, &message, flags);
	} while (operation_is_busy(e, started));
	operation_say_started(operation_slot(command), started);
}

/* show id= [result]: the bytes, of memory or of what an atomic operation returned. */
static void run_show(struct command *command)
{
	struct operation *operation = operation_existing(command);
	struct memory *m = command_flag(command, "result") ? &operation->result : &operation->memory;
	char *text = malloc(2 * m->size + 1);

	if (!text)
		die("no memory");
	text[0] = '\0';
	for (size_t i = 0; i < m->size; i++)
		snprintf(text + 2 * i, 3, "%02x", m->bytes[i]);
	say("bytes hex=%s", text);
	free(text);
}

bool remote_run(struct endpoint *endpoint, struct command *command)
{
	if (strcmp(command->verb, "expose") == 0)
		run_expose(endpoint, command);
	else if (strcmp(command->verb, "write") == 0)
		run_rma(endpoint, command, true);
	else if (strcmp(command->verb, "read") == 0)
		run_rma(endpoint, command, false);
	else if (strcmp(command->verb, "atomic") == 0)
		run_atomic(endpoint, command);
	else if (strcmp(command->verb, "show") == 0)
		run_show(command);
	else if (strcmp(command->verb, "forget") == 0)
		operation_forget(operation_slot(command)), say("ok");
	else
		return false;
	return true;
}

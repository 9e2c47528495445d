#include "operations.h"

#include <inttypes.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "report.h"

enum { MAX_OPERATIONS = 8192, MAX_PARTS = 512 };

/* An operation, from its command until `check` or `forget`; libfabric's context of it is its address. */
struct operation {
	char name[24]; /* its id as text */
	struct memory memory;
	/* Parts of a multi-receive buffer that messages lie in, in the order of their completions. */
	struct part {
		size_t offset, length;
	} *parts;
	size_t part_count;
};

static struct operation *operations[MAX_OPERATIONS];

static struct operation **slot(struct command *command)
{
	uint64_t id = command_number_or(command, "id", MAX_OPERATIONS);

	if (id >= MAX_OPERATIONS)
		die("%s: id= is missing or not below %d", command->verb, MAX_OPERATIONS);
	return &operations[id];
}

static struct operation *existing(struct command *command)
{
	struct operation *operation = *slot(command);

	if (!operation)
		die("%s: no such operation", command->verb);
	return operation;
}

static void forget(struct operation **slot)
{
	if (!*slot)
		return;
	memory_free(&(*slot)->memory);
	free((*slot)->parts);
	free(*slot);
	*slot = NULL;
}

static struct operation *new_operation(struct endpoint *endpoint, struct command *command, uint64_t access)
{
	struct operation **place = slot(command), *operation = calloc(1, sizeof(*operation));

	if (!operation)
		die("no memory");
	forget(place);
	*place = operation;
	snprintf(operation->name, sizeof(operation->name), "%td", place - operations);
	operation->memory = memory_new(endpoint->domain, command_number_or(command, "size", 0), access);
	return operation;
}

/* Says what came of starting an operation. One that wasn't started is forgotten. */
static void say_started(struct operation **slot, ssize_t result)
{
	if (result == 0) {
		say("ok");
	} else {
		say("refused error=%zd", -result);
		forget(slot);
	}
}

/* What a busy endpoint refuses is to be tried again, after a look at the queue. */
static bool is_busy(struct endpoint *endpoint, ssize_t result)
{
	if (result != -FI_EAGAIN)
		return false;
	operations_progress(endpoint);
	return true;
}

static ssize_t inject(struct endpoint *e, struct memory *m, fi_addr_t to, const uint64_t *tag,
		      const uint64_t *data)
{
	if (tag && data)
		return fi_tinjectdata(e->ep, m->bytes, m->size, *data, to, *tag);
	if (tag)
		return fi_tinject(e->ep, m->bytes, m->size, to, *tag);
	if (data)
		return fi_injectdata(e->ep, m->bytes, m->size, *data, to);
	return fi_inject(e->ep, m->bytes, m->size, to);
}

static ssize_t send_with(struct endpoint *e, struct operation *operation, fi_addr_t to, const uint64_t *tag,
			 const uint64_t *data, uint64_t flags)
{
	struct memory *m = &operation->memory;
	struct iovec iov = { m->bytes, m->size };
	void *desc = fi_mr_desc(m->region);

	flags |= FI_COMPLETION | (data ? FI_REMOTE_CQ_DATA : 0);
	if (tag) {
		struct fi_msg_tagged message = {
			.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = to,
			.tag = *tag, .context = operation, .data = data ? *data : 0,
		};

		return fi_tsendmsg(e->ep, &message, flags);
	}
	struct fi_msg message = {
		.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = to,
		.context = operation, .data = data ? *data : 0,
	};

	return fi_sendmsg(e->ep, &message, flags);
}

/* send id= to= size= seed= [tag=] [data=] [inject|delivery] */
static void run_send(struct endpoint *e, struct command *command)
{
	struct operation *operation = new_operation(e, command, FI_SEND);
	uint64_t tag, data;
	const uint64_t *tag_at = command_number(command, "tag", &tag) ? &tag : NULL;
	const uint64_t *data_at = command_number(command, "data", &data) ? &data : NULL;
	fi_addr_t to = command_number_or(command, "to", 0);
	uint64_t flags = command_flag(command, "delivery") ? FI_DELIVERY_COMPLETE : 0;
	bool injected = command_flag(command, "inject");
	ssize_t result;

	memory_fill(&operation->memory, command_number_or(command, "seed", 0));
	do {
		result = injected ? inject(e, &operation->memory, to, tag_at, data_at)
				  : send_with(e, operation, to, tag_at, data_at, flags);
	} while (is_busy(e, result));
	say_started(slot(command), result);
	/* An injected buffer may be used again at once: nothing may come of that. */
	if (injected && result == 0)
		forget(slot(command));
}

/* receive id= size= [from=] [tag= [ignore=]] */
static void run_receive(struct endpoint *e, struct command *command)
{
	struct operation *operation = new_operation(e, command, FI_RECV);
	struct memory *m = &operation->memory;
	fi_addr_t from = command_number_or(command, "from", FI_ADDR_UNSPEC);
	uint64_t ignore = command_number_or(command, "ignore", 0), tag = 0;
	bool tagged = command_number(command, "tag", &tag);
	void *desc = fi_mr_desc(m->region);
	ssize_t result;

	do {
		result = tagged ? fi_trecv(e->ep, m->bytes, m->size, desc, from, tag, ignore, operation)
				: fi_recv(e->ep, m->bytes, m->size, desc, from, operation);
	} while (is_busy(e, result));
	say_started(slot(command), result);
}

/* receive-many id= size= [from=] */
static void run_receive_many(struct endpoint *e, struct command *command)
{
	struct operation *operation = new_operation(e, command, FI_RECV);
	struct iovec iov = { operation->memory.bytes, operation->memory.size };
	void *desc = fi_mr_desc(operation->memory.region);
	struct fi_msg message = {
		.msg_iov = &iov, .desc = &desc, .iov_count = 1, .context = operation,
		.addr = command_number_or(command, "from", FI_ADDR_UNSPEC),
	};

	ssize_t result;

	operation->parts = calloc(MAX_PARTS, sizeof(*operation->parts));
	if (!operation->parts)
		die("no memory");
	do {
		result = fi_recvmsg(e->ep, &message, FI_MULTI_RECV);
	} while (is_busy(e, result));
	say_started(slot(command), result);
}

/* cancel id= */
static void run_cancel(struct endpoint *e, struct command *command)
{
	ssize_t result = fi_cancel(&e->ep->fid, existing(command));

	if (result)
		say("refused error=%zd", -result);
	else
		say("ok");
}

static void say_damage(struct damage damage)
{
	if (damage.where)
		say("damaged where=%s at=%zu expected=0x%02x found=0x%02x", damage.where, damage.at,
		    damage.expected, damage.found);
	else
		say("intact");
}

/* check id= length= seed= [part=]: the message, and all around it. A receive is forgotten then. */
static void run_check(struct command *command)
{
	struct operation *operation = existing(command);
	struct memory *m = &operation->memory;
	uint64_t seed = command_number_or(command, "seed", 0);
	size_t length = command_number_or(command, "length", 0), from = 0;
	struct damage damage;
	uint64_t number;

	if (command_number(command, "part", &number)) {
		if (number >= operation->part_count)
			die("check: no part %" PRIu64, number);
		from = operation->parts[number].offset;
		if (operation->parts[number].length < length)
			die("check: part %" PRIu64 " is shorter", number);
		say_damage(memory_check_pattern(m, from, from + length, seed));
		return;
	}
	if (length > m->size)
		die("check: the buffer is shorter");
	damage = memory_check_pattern(m, 0, length, seed);
	if (!damage.where)
		damage = memory_check_untouched(m, length, m->size);
	say_damage(damage);
	forget(slot(command));
}

/* check-rest id=: no byte of a multi-receive buffer was written outside its messages. It is forgotten. */
static void run_check_rest(struct command *command)
{
	struct operation *operation = existing(command);
	struct damage damage;
	size_t end = 0;

	for (size_t i = 0; i < operation->part_count; i++) {
		size_t behind = operation->parts[i].offset + operation->parts[i].length;

		end = behind > end ? behind : end;
	}
	damage = memory_check_untouched(&operation->memory, end, operation->memory.size);
	say_damage(damage);
	forget(slot(command));
}

bool operations_run(struct endpoint *endpoint, struct command *command)
{
	if (strcmp(command->verb, "send") == 0)
		run_send(endpoint, command);
	else if (strcmp(command->verb, "receive") == 0)
		run_receive(endpoint, command);
	else if (strcmp(command->verb, "receive-many") == 0)
		run_receive_many(endpoint, command);
	else if (strcmp(command->verb, "cancel") == 0)
		run_cancel(endpoint, command);
	else if (strcmp(command->verb, "check") == 0)
		run_check(command);
	else if (strcmp(command->verb, "check-rest") == 0)
		run_check_rest(command);
	else
		return false;
	return true;
}

static void completed(struct operation *operation, const struct fi_cq_tagged_entry *entry, fi_addr_t source)
{
	if (operation && operation->parts && entry->flags & FI_RECV) {
		if (operation->part_count == MAX_PARTS)
			die("more than %d messages in one buffer", MAX_PARTS);
		operation->parts[operation->part_count++] = (struct part){
			.offset = (size_t)((unsigned char *)entry->buf - operation->memory.bytes),
			.length = entry->len,
		};
	}
	say_done(operation ? operation->name : "none", entry, source);
}

bool operations_progress(struct endpoint *endpoint)
{
	struct fi_cq_tagged_entry entry = { 0 };
	struct fi_cq_err_entry error = { 0 };
	fi_addr_t source = FI_ADDR_NOTAVAIL;
	const struct operation *operation;
	char text[256];
	ssize_t count = fi_cq_readfrom(endpoint->queue, &entry, 1, &source);

	if (count == 1) {
		completed(entry.op_context, &entry, source);
		return true;
	}
	if (count == -FI_EAGAIN)
		return false;
	if (count != -FI_EAVAIL)
		require(count, "fi_cq_readfrom");
	require(fi_cq_readerr(endpoint->queue, &error, 0), "fi_cq_readerr");
	operation = error.op_context;
	say_failed(operation ? operation->name : "none", &error,
		   fi_cq_strerror(endpoint->queue, error.prov_errno, error.err_data, text, sizeof(text)));
	return true;
}

void operations_end(void)
{
	for (size_t i = 0; i < MAX_OPERATIONS; i++)
		forget(&operations[i]);
}

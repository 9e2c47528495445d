/* Messages: send, receive, receive-many, cancel, check, check-rest. */
#include <inttypes.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <stdlib.h>
#include <string.h>

#include "operation.h"
#include "report.h"

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
	void *desc = memory_desc(m);

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
	struct operation *operation = operation_new(e, command, FI_SEND);
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
	} while (operation_is_busy(e, result));
	operation_say_started(operation_slot(command), result);
	/* An injected buffer may be reused at once. */
	if (injected && result == 0)
		operation_forget(operation_slot(command));
}

/* receive id= size= [from=] [tag= [ignore=]] */
static void run_receive(struct endpoint *e, struct command *command)
{
	struct operation *operation = operation_new(e, command, FI_RECV);
	struct memory *m = &operation->memory;
	fi_addr_t from = command_number_or(command, "from", FI_ADDR_UNSPEC);
	uint64_t ignore = command_number_or(command, "ignore", 0), tag = 0;
	bool tagged = command_number(command, "tag", &tag);
	void *desc = memory_desc(m);
	ssize_t result;

	do {
		result = tagged ? fi_trecv(e->ep, m->bytes, m->size, desc, from, tag, ignore, operation)
				: fi_recv(e->ep, m->bytes, m->size, desc, from, operation);
	} while (operation_is_busy(e, result));
	operation_say_started(operation_slot(command), result);
}

/* receive-many id= size= [from=] */
static void run_receive_many(struct endpoint *e, struct command *command)
{
	struct operation *operation = operation_new(e, command, FI_RECV);
	struct iovec iov = { operation->memory.bytes, operation->memory.size };
	void *desc = memory_desc(&operation->memory);
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
	} while (operation_is_busy(e, result));
	operation_say_started(operation_slot(command), result);
}

/* cancel id= */
static void run_cancel(struct endpoint *e, struct command *command)
{
	ssize_t result = fi_cancel(&e->ep->fid, operation_existing(command));

	/* A success also if the receive has ended. */
	if (result)
		say("refused error=%zd", -result);
	else
		say("ok");
}

/* A message of a multi-receive buffer. */
static struct damage check_part(const struct operation *operation, uint64_t number, size_t length,
				uint64_t seed)
{
	const struct part *part = &operation->parts[number];

	if (number >= operation->part_count || part->length < length)
		die("check: part %" PRIu64 " is not there or shorter", number);
	return memory_check_pattern(&operation->memory, part->offset, part->offset + length, seed);
}

/* check id= length= seed= [part=] [from=]: the message, and the bytes around it. The receive is
 * dropped then. */
static void run_check(struct command *command)
{
	struct operation *operation = operation_existing(command);
	struct memory *m = &operation->memory;
	uint64_t seed = command_number_or(command, "seed", 0), part;
	size_t length = command_number_or(command, "length", 0);
	size_t from = command_number_or(command, "from", 0);
	struct damage damage;

	if (command_number(command, "part", &part)) {
		say_damage(check_part(operation, part, length, seed));
		return;
	}
	if (from + length > m->size)
		die("check: the buffer is shorter");
	damage = memory_check_pattern(m, from, from + length, seed);
	if (!damage.where)
		damage = memory_check_untouched(m, 0, from);
	if (!damage.where)
		damage = memory_check_untouched(m, from + length, m->size);
	say_damage(damage);
	if (!operation->exposed)
		operation_forget(operation_slot(command));
}

/* check-rest id=: no byte of a multi-receive buffer was written outside its messages. It is dropped. */
static void run_check_rest(struct command *command)
{
	struct operation *operation = operation_existing(command);
	struct damage damage;
	size_t end = 0;

	for (size_t i = 0; i < operation->part_count; i++) {
		size_t behind = operation->parts[i].offset + operation->parts[i].length;

		end = behind > end ? behind : end;
	}
	damage = memory_check_untouched(&operation->memory, end, operation->memory.size);
	say_damage(damage);
	operation_forget(operation_slot(command));
}

bool messages_run(struct endpoint *endpoint, struct command *command)
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

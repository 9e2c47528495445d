#include "operations.h"

#include <rdma/fi_errno.h>

#include "operation.h"
#include "report.h"

bool operations_run(struct endpoint *endpoint, struct command *command)
{
	return messages_run(endpoint, command) || remote_run(endpoint, command);
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

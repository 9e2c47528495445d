/* An enabled libfabric endpoint of the EFA provider, and the objects bound to it. */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include <rdma/fabric.h>

#include "command.h"

struct endpoint {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *addresses;
	struct fid_cq *queue;
	struct fid_eq *events;
	struct fid_ep *ep;
	bool registers; /* libfabric registers the buffers of messages, not the application */
};

/* The command `open`. */
struct endpoint endpoint_open(struct command *command);

/* Closes the endpoint, then the rest; its buffers can be freed in between. */
void endpoint_stop(struct endpoint *endpoint);
void endpoint_close(struct endpoint *endpoint);

/* Prints errors that belong to no operation. */
void endpoint_say_events(struct endpoint *endpoint);

/* Adds the peer with this address, in hexadecimal. */
fi_addr_t endpoint_insert(struct endpoint *endpoint, const char *address);

#endif

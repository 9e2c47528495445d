#include "endpoint.h"

#include <inttypes.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* Length of an address of the EFA provider. */
enum { ADDRESS = 32 };
/* The version of libfabric's interface used here. */
#define API FI_VERSION(1, 17)

static struct fi_info *find(struct command *command, bool registers)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	const char *provider = getenv("EFA_PEER_PROVIDER");

	if (!hints)
		die("fi_allocinfo");
	hints->fabric_attr->prov_name = strdup(provider ? provider : "efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	if (!registers)
		hints->domain_attr->mr_mode |= FI_MR_LOCAL;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->tx_attr->size = command_number_or(command, "sends", 0);
	hints->rx_attr->size = command_number_or(command, "receives", 0);
	/* The library path may have another libfabric than this was built with. */
	require(fi_getinfo(fi_version() < API ? fi_version() : API, NULL, NULL, 0, hints, &info),
		"fi_getinfo");
	fi_freeinfo(hints);
	return info;
}

static void set_options(struct endpoint *endpoint, struct command *command)
{
	uint64_t number;

	if (command_number(command, "rnr-retry", &number)) {
		size_t retry = number;

		require(fi_setopt(&endpoint->ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &retry,
				  sizeof(retry)),
			"fi_setopt of the RNR retries");
	}
	if (command_number(command, "min-multi", &number)) {
		size_t least = number;

		require(fi_setopt(&endpoint->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least,
				  sizeof(least)),
			"fi_setopt of the least multi-receive");
	}
}

static void say_opened(struct endpoint *endpoint)
{
	unsigned char address[ADDRESS];
	char text[2 * ADDRESS + 1];
	size_t length = sizeof(address);

	require(fi_getname(&endpoint->ep->fid, address, &length), "fi_getname");
	if (length != ADDRESS)
		die("an address of %zu bytes", length);
	for (size_t i = 0; i < ADDRESS; i++)
		snprintf(text + 2 * i, 3, "%02x", address[i]);
	say("opened address=%s inject=%zu", text, endpoint->info->tx_attr->inject_size);
}

struct endpoint endpoint_open(struct command *command)
{
	bool registers = command_flag(command, "unregistered");
	struct endpoint e = { .info = find(command, registers), .registers = registers };
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	struct fi_eq_attr eq = { .wait_obj = FI_WAIT_NONE };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE, .size = 8192 };

	require(fi_fabric(e.info->fabric_attr, &e.fabric, NULL), "fi_fabric");
	require(fi_domain(e.fabric, e.info, &e.domain, NULL), "fi_domain");
	require(fi_av_open(e.domain, &av, &e.addresses, NULL), "fi_av_open");
	require(fi_cq_open(e.domain, &cq, &e.queue, NULL), "fi_cq_open");
	require(fi_eq_open(e.fabric, &eq, &e.events, NULL), "fi_eq_open");
	require(fi_endpoint(e.domain, e.info, &e.ep, NULL), "fi_endpoint");
	require(fi_ep_bind(e.ep, &e.addresses->fid, 0), "fi_ep_bind of the address vector");
	require(fi_ep_bind(e.ep, &e.queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind of the queue");
	require(fi_ep_bind(e.ep, &e.events->fid, 0), "fi_ep_bind of the event queue");
	set_options(&e, command);
	require(fi_enable(e.ep), "fi_enable");
	say_opened(&e);
	return e;
}

void endpoint_stop(struct endpoint *endpoint)
{
	require(fi_close(&endpoint->ep->fid), "fi_close of the endpoint");
	endpoint->ep = NULL;
}

void endpoint_close(struct endpoint *endpoint)
{
	require(fi_close(&endpoint->queue->fid), "fi_close of the queue");
	require(fi_close(&endpoint->events->fid), "fi_close of the event queue");
	require(fi_close(&endpoint->addresses->fid), "fi_close of the address vector");
	require(fi_close(&endpoint->domain->fid), "fi_close of the domain");
	require(fi_close(&endpoint->fabric->fid), "fi_close of the fabric");
	fi_freeinfo(endpoint->info);
	*endpoint = (struct endpoint){ 0 };
}

void endpoint_say_events(struct endpoint *endpoint)
{
	struct fi_eq_entry entry;
	struct fi_eq_err_entry error = { 0 };
	uint32_t event;
	ssize_t count = fi_eq_read(endpoint->events, &event, &entry, sizeof(entry), 0);

	if (count == -FI_EAGAIN)
		return;
	if (count != -FI_EAVAIL)
		die("fi_eq_read: %zd", count);
	count = fi_eq_readerr(endpoint->events, &error, 0);
	require(count, "fi_eq_readerr");
	say("event error=%d provider-error=%d", error.err, error.prov_errno);
}

fi_addr_t endpoint_insert(struct endpoint *endpoint, const char *address)
{
	unsigned char bytes[ADDRESS];
	fi_addr_t peer = FI_ADDR_NOTAVAIL;

	if (strlen(address) != 2 * ADDRESS)
		die("%s is no address", address);
	for (size_t i = 0; i < ADDRESS; i++) {
		if (sscanf(address + 2 * i, "%2hhx", &bytes[i]) != 1)
			die("%s is no address", address);
	}
	if (fi_av_insert(endpoint->addresses, bytes, 1, &peer, 0, NULL) != 1)
		die("fi_av_insert");
	return peer;
}

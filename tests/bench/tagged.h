/* What the ping-pongs on libfabric have in common: an endpoint for tagged messages, which finds its peer by files. */
#ifndef TAGGED_H
#define TAGGED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

/* ADDRESS: the most bytes of an address. ADDRESS_TIMEOUT: seconds. LAST_READS: what the server reads at the end, for
 * acknowledgements that its peer waits for.
 */
enum { TAG = 7, ADDRESS = 256, ADDRESS_TIMEOUT = 60, LAST_READS = 2000 };

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static fi_addr_t peer;
/* Most bytes of an injected message. */
static size_t inject_size;
/* Calls of the library that are counted. */
static uint64_t calls;

static void check(long code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
	exit(1);
}

static void open_endpoint(const char *provider, enum fi_threading threading)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 1024 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	hints->domain_attr->threading = threading;
	hints->fabric_attr->prov_name = strdup(provider);
	check(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info), "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	check(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	check(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	check(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	check(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind to the queue");
	check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind to the addresses");
	check(fi_enable(ep), "fi_enable");
	inject_size = info->tx_attr->inject_size;
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

/* Writes our address into the directory, and waits for that of the other side. */
static void meet(const char *directory, const char *ours, const char *theirs)
{
	char address[ADDRESS] = { 0 }, place[512], unfinished[520];
	size_t length = sizeof(address);
	struct timespec pause = { .tv_nsec = 2000000 };
	time_t until = time(NULL) + ADDRESS_TIMEOUT;
	FILE *file;

	check(fi_getname(&ep->fid, address, &length), "fi_getname");
	snprintf(place, sizeof(place), "%s/%s", directory, ours);
	snprintf(unfinished, sizeof(unfinished), "%s.new", place);
	file = fopen(unfinished, "w");
	if (!file || fwrite(address, sizeof(address), 1, file) != 1 || fclose(file) ||
	    rename(unfinished, place)) {
		perror(place);
		exit(1);
	}
	snprintf(place, sizeof(place), "%s/%s", directory, theirs);
	while (!(file = fopen(place, "r"))) {
		if (time(NULL) > until) {
			fprintf(stderr, "no %s\n", theirs);
			exit(1);
		}
		nanosleep(&pause, NULL);
	}
	if (fread(address, sizeof(address), 1, file) != 1) {
		perror(place);
		exit(1);
	}
	fclose(file);
	if (fi_av_insert(av, address, 1, &peer, 0, NULL) != 1)
		check(-FI_EINVAL, "fi_av_insert");
}

static inline void inject(uint64_t round)
{
	ssize_t code;

	for (;;) {
		calls++;
		code = fi_tinject(ep, &round, sizeof(round), peer, TAG);
		if (code != -FI_EAGAIN)
			break;
		calls++;
		fi_cq_read(cq, NULL, 0);
	}
	check(code, "fi_tinject");
}

#endif

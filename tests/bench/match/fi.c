/* An endpoint of libfabric's shm provider that sends messages to itself. See measure.h.
 *
 * FI_SHM_RX_SIZE sets the number of receives that the provider takes.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#include "measure.h"

static struct fid_ep *ep;
static struct fid_cq *cq;
static fi_addr_t self;
static char *buffers;
/* Completions since the last operation whose completion was waited for. */
static int sent, received;

static void check(long code, const char *what)
{
	if (code < 0) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
		exit(1);
	}
}

static void progress(void)
{
	struct fi_cq_tagged_entry entry;
	ssize_t count = fi_cq_read(cq, &entry, 1);

	if (count == -FI_EAGAIN)
		return;
	check(count, "fi_cq_read");
	if (entry.flags & FI_SEND)
		sent++;
	else
		received++;
}

static void post(int tag)
{
	check(fi_trecv(ep, buffers + PAYLOAD * (size_t)tag, PAYLOAD, NULL, FI_ADDR_UNSPEC,
		       (uint64_t)tag, 0, NULL), "fi_trecv");
}

static void send_to_self(int tag)
{
	static char payload[PAYLOAD] = "payload";
	ssize_t code;

	do {
		code = fi_tsend(ep, payload, PAYLOAD, NULL, self, (uint64_t)tag, NULL);
		if (code == -FI_EAGAIN)
			progress();
	} while (code == -FI_EAGAIN);
	check(code, "fi_tsend");
}

static void wait_for(int *which)
{
	while (!*which)
		progress();
	*which = 0;
}

static void round_of(const struct work *work, int tag)
{
	if (work->unexpected) {
		post(tag);
		wait_for(&received);
		send_to_self(tag);
		wait_for(&sent);
	} else {
		send_to_self(tag);
		wait_for(&received);
		wait_for(&sent);
		post(tag);
	}
}

static void open_endpoint(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 1024 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	char name[256];
	size_t name_len = sizeof(name);

	if (!hints)
		exit(1);
	hints->caps = FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("shm");
	check(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	check(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	check(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	check(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	check(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	check(fi_enable(ep), "fi_enable");
	check(fi_getname(&ep->fid, name, &name_len), "fi_getname");
	if (fi_av_insert(av, name, 1, &self, 0, NULL) != 1)
		check(-FI_EINVAL, "fi_av_insert");
}

int main(int argc, char **argv)
{
	struct work work = work_from(argc, argv);

	buffers = calloc((size_t)work.depth, PAYLOAD);
	if (!buffers)
		return 1;
	open_endpoint();
	/* The first exchange makes the endpoint known to itself. */
	post(0);
	send_to_self(0);
	wait_for(&received);
	wait_for(&sent);
	for (int tag = 0; tag < work.depth; tag++) {
		if (work.unexpected) {
			send_to_self(tag);
			wait_for(&sent);
		} else {
			post(tag);
		}
	}
	measure(&work);
	/* The provider's part of /dev/shm goes with its endpoint; what waits goes with it. */
	fflush(stdout);
	fi_close(&ep->fid);
	_Exit(0);
}

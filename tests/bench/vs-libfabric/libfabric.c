/* A ping-pong of tagged messages of 8 bytes on libfabric's EFA provider; see src/main.rs for its steps and
 * its arguments.
 */
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

enum { TAG = 7, ADDRESS = 64, LAST_READS = 2000, ADDRESS_TIMEOUT = 60 };

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static uint64_t calls;

static void check(long code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
	exit(1);
}

static void open_endpoint(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 1024 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("efa");
	check(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info), "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	check(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	check(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	check(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	check(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind to the queue");
	check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind to the addresses");
	check(fi_enable(ep), "fi_enable");
}

/* libfabric's EFA provider always opens the shm provider, which leaves 16 MiB in /dev/shm unless it is
 * closed.
 */
static void close_all(void)
{
	check(fi_close(&ep->fid), "fi_close of the endpoint");
	check(fi_close(&cq->fid), "fi_close of the queue");
	check(fi_close(&av->fid), "fi_close of the addresses");
	check(fi_close(&domain->fid), "fi_close of the domain");
	check(fi_close(&fabric->fid), "fi_close of the fabric");
}

/* Writes our address into the directory, and waits for that of the other side. */
static fi_addr_t meet(const char *directory, const char *ours, const char *theirs)
{
	char address[ADDRESS] = { 0 }, place[512], unfinished[520];
	size_t length = sizeof(address);
	struct timespec pause = { .tv_nsec = 2000000 };
	time_t until = time(NULL) + ADDRESS_TIMEOUT;
	fi_addr_t peer;
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
	return peer;
}

static void post(uint64_t *buffer, struct fi_context *context)
{
	ssize_t code;

	do {
		calls++;
		code = fi_trecv(ep, buffer, sizeof(*buffer), NULL, FI_ADDR_UNSPEC, TAG, 0, context);
	} while (code == -FI_EAGAIN);
	check(code, "fi_trecv");
}

static void inject(fi_addr_t peer, uint64_t round)
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

static void await_message(const uint64_t *buffer, uint64_t round)
{
	struct fi_cq_tagged_entry entry;
	ssize_t count;

	do {
		calls++;
		count = fi_cq_read(cq, &entry, 1);
	} while (count == -FI_EAGAIN);
	check(count, "fi_cq_read");
	if (*buffer != round) {
		fprintf(stderr, "round %lu brought %lu\n", (unsigned long)round,
			(unsigned long)*buffer);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static uint64_t buffer;
	static struct fi_context context;
	struct fi_cq_tagged_entry entry;
	uint64_t round, rounds;
	fi_addr_t peer;

	if (argc != 4) {
		fprintf(stderr, "client|server DIR ROUNDS are expected\n");
		return 1;
	}
	rounds = strtoull(argv[3], NULL, 10);
	open_endpoint();
	if (!strcmp(argv[1], "client")) {
		peer = meet(argv[2], "client", "server");
		for (round = 0; round < rounds; round++) {
			post(&buffer, &context);
			inject(peer, round);
			await_message(&buffer, round);
		}
	} else {
		peer = meet(argv[2], "server", "client");
		for (round = 0; round < rounds; round++) {
			post(&buffer, &context);
			await_message(&buffer, round);
			inject(peer, round);
		}
		for (round = 0; round < LAST_READS; round++)
			fi_cq_read(cq, &entry, 1);
	}
	printf("calls %lu\n", (unsigned long)calls);
	close_all();
	return 0;
}

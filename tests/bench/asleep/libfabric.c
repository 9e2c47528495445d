/* A ping-pong of injected, tagged messages of 8 bytes between two processes that wait in blocking reads of
 * libfabric's completion queues: what src/main.rs does here.
 *
 *     libfabric PROVIDER ROUNDS
 *
 * It prints the nanoseconds of a round trip, and how often each process gave up its processor in a round.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

enum { TAG = 7, ADDRESS = 128, WARM = 1000, DEADLINE = 120 };

static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;

static void check(long code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
	exit(1);
}

static void all(long moved, size_t length, const char *what)
{
	if (moved == (long)length)
		return;
	perror(what);
	exit(1);
}

static void open_endpoint(const char *provider)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = {
		.format = FI_CQ_FORMAT_TAGGED, .size = 1024, .wait_obj = FI_WAIT_UNSPEC,
	};
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT;
	hints->fabric_attr->prov_name = strdup(provider);
	check(fi_getinfo(FI_VERSION(1, 14), "127.0.0.1", NULL, FI_SOURCE, hints, &info),
	      "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	check(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	check(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	check(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	check(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind to the queue");
	check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind to the addresses");
	check(fi_enable(ep), "fi_enable");
	if (getenv("VERBOSE"))
		fprintf(stderr, "%s\n", info->fabric_attr->prov_name);
}

static fi_addr_t meet(int to, int from)
{
	char address[ADDRESS] = { 0 };
	size_t length = sizeof(address);
	fi_addr_t peer;

	check(fi_getname(&ep->fid, address, &length), "fi_getname");
	all(write(to, address, sizeof(address)), sizeof(address), "write");
	all(read(from, address, sizeof(address)), sizeof(address), "read");
	if (fi_av_insert(av, address, 1, &peer, 0, NULL) != 1)
		check(-FI_EINVAL, "fi_av_insert");
	return peer;
}

static void post(uint64_t *buffer, struct fi_context *context)
{
	ssize_t code;

	while ((code = fi_trecv(ep, buffer, sizeof(*buffer), NULL, FI_ADDR_UNSPEC, TAG, 0,
				context)) == -FI_EAGAIN)
		fi_cq_read(cq, NULL, 0);
	check(code, "fi_trecv");
}

static void inject(fi_addr_t peer, uint64_t round)
{
	ssize_t code;

	/* The provider connects with the first messages. */
	while ((code = fi_tinject(ep, &round, sizeof(round), peer, TAG)) == -FI_EAGAIN)
		fi_cq_read(cq, NULL, 0);
	check(code, "fi_tinject");
}

static void await_message(const uint64_t *buffer, uint64_t round)
{
	struct fi_cq_tagged_entry entry;
	ssize_t count;

	do {
		count = fi_cq_sread(cq, &entry, 1, NULL, -1);
	} while (count == -FI_EAGAIN || count == -FI_EINTR);
	check(count, "fi_cq_sread");
	if (*buffer != round) {
		fprintf(stderr, "round %lu brought %lu\n", (unsigned long)round,
			(unsigned long)*buffer);
		exit(1);
	}
}

static void play(fi_addr_t peer, uint64_t begin, uint64_t end, int begins)
{
	static uint64_t buffer;
	static struct fi_context context;
	uint64_t round;

	for (round = begin; round < end; round++) {
		post(&buffer, &context);
		if (begins)
			inject(peer, round);
		await_message(&buffer, round);
		if (!begins)
			inject(peer, round);
	}
}

static double switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv)
{
	int there[2], back[2], status;
	uint64_t rounds;
	double begin, before, mine, theirs;
	fi_addr_t peer;
	pid_t child;

	if (argc != 3) {
		fprintf(stderr, "PROVIDER ROUNDS are expected\n");
		return 1;
	}
	rounds = strtoull(argv[2], NULL, 10);
	alarm(DEADLINE);
	if (pipe(there) || pipe(back) || (child = fork()) < 0) {
		perror("pipe or fork");
		return 1;
	}
	if (!child) {
		alarm(DEADLINE);
		open_endpoint(argv[1]);
		peer = meet(back[1], there[0]);
		play(peer, 0, WARM, 0);
		before = switches();
		play(peer, WARM, WARM + rounds, 0);
		theirs = (switches() - before) / rounds;
		all(write(back[1], &theirs, sizeof(theirs)), sizeof(theirs), "write");
		/* The last message leaves while this side is still there. */
		all(read(there[0], &theirs, sizeof(theirs)), sizeof(theirs), "read");
		return 0;
	}
	open_endpoint(argv[1]);
	peer = meet(there[1], back[0]);
	play(peer, 0, WARM, 1);
	begin = now();
	before = switches();
	play(peer, WARM, WARM + rounds, 1);
	begin = now() - begin;
	mine = (switches() - before) / rounds;
	all(read(back[0], &theirs, sizeof(theirs)), sizeof(theirs), "read");
	all(write(there[1], &theirs, sizeof(theirs)), sizeof(theirs), "write");
	printf("%.0f %.2f %.2f\n", begin / rounds, mine, theirs);
	if (waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "the child failed\n");
		return 1;
	}
	return 0;
}

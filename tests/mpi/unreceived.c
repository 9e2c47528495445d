/* How much the receivers of an MPI program could keep as unexpected, at most: preloaded, it adds each
 * message to an account of its receiver when it is sent, and subtracts it when its receive completes.
 *
 *     fi_tsend ──► account of the receiver's queue pair, in a file that all processes share ◄── fi_cq_read
 *
 * Messages in flight, and those whose receive is posted, are in the account too, and it is one for all
 * senders. So it is never less than what the receiver keeps of any one of them. A balance that isn't 0 at
 * the end says that the program used calls that are not seen here. How to run it: README.md.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Longer messages are not sent before their receive is there, but for the first packet. */
enum { LONG = 65536, PACKET = 8928, LONGEST_HEADER = 96 };

struct account {
	_Atomic int64_t bytes, messages, most, most_messages, total;
};

static struct account *accounts;
static struct account *own;
static struct fid_av *addresses;
static uint16_t numbers[1 << 16]; /* queue pair number + 1 by fi_addr_t */
static struct fi_ops_tagged tagged;
static struct fi_ops_msg msg;
static struct fi_ops_cq cqs;
static struct fi_ops_domain domains;
static struct fi_ops_fabric fabrics;
static const struct fi_ops_tagged *real_tagged;
static const struct fi_ops_msg *real_msg;
static const struct fi_ops_cq *real_cq;
static const struct fi_ops_domain *real_domain;
static const struct fi_ops_fabric *real_fabric;

/* What efa-rdm charges for a packet: the next power of two from 64 on, and 256. */
static int64_t cost(size_t packet)
{
	int64_t memory = 64;

	while (memory < (int64_t)packet)
		memory *= 2;
	return memory + 256;
}

static int64_t charge(size_t length)
{
	size_t most = PACKET - LONGEST_HEADER;
	int64_t sum = 0;

	if (length > LONG)
		return cost(PACKET);
	for (; length > most; length -= most)
		sum += cost(PACKET);
	return sum + cost(length + LONGEST_HEADER);
}

static void raise_to(_Atomic int64_t *most, int64_t value)
{
	int64_t seen = atomic_load(most);

	while (value > seen && !atomic_compare_exchange_weak(most, &seen, value))
		;
}

static struct account *account_of(fi_addr_t to)
{
	unsigned char raw[64];
	size_t length = sizeof(raw);
	uint16_t number;

	if (to < 1 << 16 && numbers[to])
		return &accounts[numbers[to] - 1];
	if (fi_av_lookup(addresses, to, raw, &length))
		abort();
	memcpy(&number, raw + 16, sizeof(number));
	if (to < 1 << 16)
		numbers[to] = number + 1;
	return &accounts[number];
}

static ssize_t sent(fi_addr_t to, size_t length, ssize_t result)
{
	struct account *account = account_of(to);

	if (result == 0) {
		raise_to(&account->most, atomic_fetch_add(&account->bytes, charge(length)) + charge(length));
		raise_to(&account->most_messages, atomic_fetch_add(&account->messages, 1) + 1);
		atomic_fetch_add(&account->total, 1);
	}
	return result;
}

static size_t all(const struct iovec *iov, size_t count)
{
	size_t length = 0;

	for (size_t i = 0; i < count; i++)
		length += iov[i].iov_len;
	return length;
}

static ssize_t t_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag, void *c)
{
	return sent(to, len, real_tagged->send(ep, buf, len, desc, to, tag, c));
}
static ssize_t t_sendv(struct fid_ep *ep, const struct iovec *v, void **desc, size_t n, fi_addr_t to, uint64_t tag, void *c)
{
	return sent(to, all(v, n), real_tagged->sendv(ep, v, desc, n, to, tag, c));
}
static ssize_t t_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags)
{
	return sent(m->addr, all(m->msg_iov, m->iov_count), real_tagged->sendmsg(ep, m, flags));
}
static ssize_t t_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to, uint64_t tag)
{
	return sent(to, len, real_tagged->inject(ep, buf, len, to, tag));
}
static ssize_t t_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to, uint64_t tag, void *c)
{
	return sent(to, len, real_tagged->senddata(ep, buf, len, desc, data, to, tag, c));
}
static ssize_t t_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t tag)
{
	return sent(to, len, real_tagged->injectdata(ep, buf, len, data, to, tag));
}
static ssize_t m_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, void *c)
{
	return sent(to, len, real_msg->send(ep, buf, len, desc, to, c));
}
static ssize_t m_sendmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	return sent(m->addr, all(m->msg_iov, m->iov_count), real_msg->sendmsg(ep, m, flags));
}
static ssize_t m_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to)
{
	return sent(to, len, real_msg->inject(ep, buf, len, to));
}

/* Contexts of receives that look at a message and leave it where it is (MPI_Probe). */
static void *peeks[64];

static int is_peek(void *context)
{
	for (size_t i = 0; i < 64; i++) {
		if (context && peeks[i] == context) {
			peeks[i] = NULL;
			return 1;
		}
	}
	return 0;
}

static ssize_t t_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags)
{
	ssize_t result = real_tagged->recvmsg(ep, m, flags);
	size_t i = 0;

	if (result || !(flags & FI_PEEK))
		return result;
	while (peeks[i])
		if (++i == 64)
			abort();
	peeks[i] = m->context;
	return 0;
}

static ssize_t cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
	ssize_t read = real_cq->readerr(cq, entry, flags);

	if (read == 1)
		is_peek(entry->op_context);
	return read;
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count)
{
	struct fi_cq_tagged_entry *entries = buf;
	ssize_t read = real_cq->read(cq, buf, count);

	for (ssize_t i = 0; i < read; i++) {
		if (!(entries[i].flags & FI_RECV) || is_peek(entries[i].op_context))
			continue;
		atomic_fetch_sub(&own->bytes, charge(entries[i].len));
		atomic_fetch_sub(&own->messages, 1);
	}
	return read;
}

static int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	int result = real_domain->cq_open(domain, attr, cq, context);

	if (result == 0 && attr->format == FI_CQ_FORMAT_TAGGED) {
		real_cq = (*cq)->ops;
		cqs = *real_cq;
		cqs.read = cq_read, cqs.readerr = cq_readerr;
		(*cq)->ops = &cqs;
	}
	return result;
}

static int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	int result = real_domain->av_open(domain, attr, av, context);

	addresses = *av;
	return result;
}

/* The own account is known once the endpoint is enabled. */
static int (*real_control)(struct fid *, int, void *);
static struct fi_ops ops;

static int control(struct fid *fid, int command, void *arg)
{
	int result = real_control(fid, command, arg);
	unsigned char raw[64];
	size_t length = sizeof(raw);
	uint16_t number;

	if (command == FI_ENABLE && result == 0 && fi_getname(fid, raw, &length) == 0) {
		memcpy(&number, raw + 16, sizeof(number));
		own = &accounts[number];
	}
	return result;
}

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	int result = real_domain->endpoint(domain, info, ep, context);

	if (result || (*ep)->tagged == &tagged)
		return result;
	real_tagged = (*ep)->tagged;
	tagged = *real_tagged;
	tagged.recvmsg = t_recvmsg;
	tagged.send = t_send, tagged.sendv = t_sendv, tagged.sendmsg = t_sendmsg;
	tagged.inject = t_inject, tagged.senddata = t_senddata, tagged.injectdata = t_injectdata;
	(*ep)->tagged = &tagged;
	real_msg = (*ep)->msg;
	msg = *real_msg;
	msg.send = m_send, msg.sendmsg = m_sendmsg, msg.inject = m_inject;
	(*ep)->msg = &msg;
	real_control = (*ep)->fid.ops->control;
	ops = *(*ep)->fid.ops;
	ops.control = control;
	(*ep)->fid.ops = &ops;
	return 0;
}

static int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
	int result = real_fabric->domain(fabric, info, domain, context);

	if (result == 0) {
		real_domain = (*domain)->ops;
		domains = *real_domain;
		domains.cq_open = cq_open, domains.av_open = av_open, domains.endpoint = endpoint;
		(*domain)->ops = &domains;
	}
	return result;
}

static void at_end(void)
{
	if (!own)
		return;
	fprintf(stderr, "unreceived: rank %s: at most %.3f MB, %ld messages; of %ld in all, balance %ld\n",
		getenv("OMPI_COMM_WORLD_RANK"), (double)own->most / 1e6, (long)own->most_messages,
		(long)own->total, (long)own->messages);
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	int (*real)(struct fi_fabric_attr *, struct fid_fabric **, void *) =
		(int (*)(struct fi_fabric_attr *, struct fid_fabric **, void *))dlsym(RTLD_NEXT, "fi_fabric");
	int result = real(attr, fabric, context);

	if (result || strcmp(attr->prov_name, "efa"))
		return result;
	if (!accounts) {
		int file = open(getenv("UNRECEIVED"), O_RDWR | O_CREAT, 0600);

		if (file < 0 || ftruncate(file, sizeof(struct account) << 16))
			abort();
		accounts = mmap(NULL, sizeof(struct account) << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		atexit(at_end);
	}
	real_fabric = (*fabric)->ops;
	fabrics = *real_fabric;
	fabrics.domain = domain_open;
	(*fabric)->ops = &fabrics;
	return 0;
}

/*
 * Calls that hold the interface wrong: each gives an error, and the objects serve on. Other providers read through such
 * pointers, so this runs on ours alone.
 */
#include "program.h"

#include <rdma/fi_ext.h>

#include <rdma/fi_collective.h>
#include <sys/uio.h>

static void needs_ours(void)
{
	if (!is_ours())
		not_offered("checks of what programs must not do");
}

/* Some error. */
#define REFUSED(call) do { \
	long long result_ = (long long)(call); \
	if (result_ >= 0) FAIL("%s gives %lld, expected an error", #call, result_); \
} while (0)

/* A message still passes. */
static void still_serves(struct world *world)
{
	struct side *from = &world->side[0], *at = &world->side[1];
	char here[8] = { 0 };

	POST(world, fi_trecv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, 77, 0, CONTEXT(50)));
	POST(world, fi_tsend(from->ep, "alive", 5, NULL, from->to[1], 77, CONTEXT(51)));
	DONE(world, at->rx, CONTEXT(50), FI_RECV | FI_TAGGED);
	DONE(world, from->tx, CONTEXT(51), FI_SEND | FI_TAGGED);
	SAME_BYTES(here, "alive", 5);
}

static const struct options all = { .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC };

/* Null where something must be. */
static void null_pointers(void)
{
	struct world world;
	struct side *side = &world.side[0];
	struct fi_cq_attr cq = { 0 };
	struct fi_av_attr av = { 0 };
	struct fid_mr *mr;
	struct fid_ep *ep;
	struct fid_cq *queue;
	uint64_t value = 0;
	size_t length = 8, limit;
	fi_addr_t to;

	needs_ours();
	open_world(&world, &all);
	to = side->to[1];
	REFUSED(fi_send(side->ep, NULL, 8, NULL, to, NULL));
	REFUSED(fi_tsend(side->ep, NULL, 8, NULL, to, 1, NULL));
	REFUSED(fi_inject(side->ep, NULL, 8, to));
	REFUSED(fi_recv(side->ep, NULL, 8, NULL, FI_ADDR_UNSPEC, NULL));
	REFUSED(fi_sendv(side->ep, NULL, NULL, 1, to, NULL));
	REFUSED(fi_recvv(side->ep, NULL, NULL, 1, to, NULL));
	REFUSED(fi_sendmsg(side->ep, NULL, 0));
	REFUSED(fi_recvmsg(side->ep, NULL, 0));
	REFUSED(fi_tsendmsg(side->ep, NULL, 0));
	REFUSED(fi_trecvmsg(side->ep, NULL, 0));
	REFUSED(fi_write(side->ep, NULL, 8, NULL, to, 0, 0, NULL));
	REFUSED(fi_read(side->ep, NULL, 8, NULL, to, 0, 0, NULL));
	REFUSED(fi_writemsg(side->ep, NULL, 0));
	REFUSED(fi_readmsg(side->ep, NULL, 0));
	REFUSED(fi_atomic(side->ep, NULL, 1, NULL, to, 0, 0, FI_UINT64, FI_SUM, NULL));
	REFUSED(fi_fetch_atomic(side->ep, &value, 1, NULL, NULL, NULL, to, 0, 0, FI_UINT64, FI_SUM, NULL));
	REFUSED(fi_compare_atomic(side->ep, &value, 1, NULL, NULL, NULL, &value, NULL, to, 0, 0, FI_UINT64, FI_CSWAP, NULL));
	REFUSED(fi_atomicmsg(side->ep, NULL, 0));
	FAILS(fi_cq_read(side->rx, NULL, 1), FI_EINVAL);
	REFUSED(fi_cq_readerr(side->rx, NULL, 0));
	FAILS(fi_cq_open(world.domain, NULL, &queue, NULL), FI_EINVAL);
	REFUSED(fi_cq_open(world.domain, &cq, NULL, NULL));
	REFUSED(fi_av_open(world.domain, &av, NULL, NULL));
	REFUSED(fi_endpoint(world.domain, NULL, &ep, NULL));
	REFUSED(fi_endpoint(world.domain, world.info, NULL, NULL));
	REFUSED(fi_srx_context(world.domain, NULL, NULL, NULL));
	REFUSED(fi_stx_context(world.domain, NULL, NULL, NULL));
	REFUSED(fi_mr_reg(world.domain, NULL, 8, FI_REMOTE_READ, 0, 9, 0, &mr, NULL));
	REFUSED(fi_mr_reg(world.domain, &value, 8, FI_REMOTE_READ, 0, 9, 0, NULL, NULL));
	REFUSED(fi_mr_regv(world.domain, NULL, 1, FI_REMOTE_READ, 0, 9, 0, &mr, NULL));
	REFUSED(fi_mr_regattr(world.domain, NULL, 0, &mr));
	REFUSED(fi_av_insert(side->av, NULL, 1, &to, 0, NULL));
	REFUSED(fi_av_lookup(side->av, 0, NULL, &length));
	REFUSED(fi_av_lookup(side->av, 0, &value, NULL));
	REFUSED(fi_getname(&side->ep->fid, NULL, NULL));
	REFUSED(fi_getname(&side->ep->fid, &value, NULL));
	length = 64;
	REFUSED(fi_getname(&side->ep->fid, NULL, &length));
	REFUSED(fi_ep_bind(side->ep, NULL, FI_RECV));
	FAILS(fi_atomicvalid(side->ep, FI_UINT64, FI_SUM, NULL), FI_EINVAL);
	REFUSED(fi_query_atomic(world.domain, FI_UINT64, FI_SUM, NULL, 0));
	REFUSED(fi_setopt(&side->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, NULL, 8));
	REFUSED(fi_getopt(&side->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &limit, NULL));
	REFUSED(fi_trywait(world.fabric, NULL, 1));
	REFUSED(fi_domain(world.fabric, NULL, &world.domain, NULL));
	REFUSED(fi_domain(world.fabric, world.info, NULL, NULL));
	REFUSED(fi_fabric(NULL, &world.fabric, NULL));
	REFUSED(fi_eq_open(world.fabric, NULL, NULL, NULL));
	/* A message of nothing needs no memory. */
	POST(&world, fi_recv(world.side[1].ep, NULL, 0, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
	POST(&world, fi_send(side->ep, NULL, 0, NULL, to, CONTEXT(2)));
	/* A read to nowhere takes nothing. */
	for (int i = 0; i < 1000; i++) {
		progress(&world);
		FAILS(fi_cq_read(world.side[1].rx, NULL, 1), FI_EINVAL);
	}
	DONE(&world, world.side[1].rx, CONTEXT(1), FI_RECV | FI_MSG);
	DONE(&world, side->tx, CONTEXT(2), FI_SEND | FI_MSG);
	still_serves(&world);
	close_world(&world);
}

/* Objects of another class in their place. */
static void wrong_class(void)
{
	struct options options = all;
	struct world world;
	struct side *side = &world.side[0];
	struct fid *fids[1];
	int fd;

	needs_ours();
	open_world(&world, &options);
	REFUSED(fi_ep_bind(side->ep, &world.domain->fid, FI_RECV));
	REFUSED(fi_ep_bind(side->ep, &world.fabric->fid, FI_RECV));
	REFUSED(fi_ep_bind(side->ep, &side->ep->fid, FI_RECV));
	REFUSED(fi_av_bind(side->av, &side->rx->fid, 0));
	REFUSED(fi_control(&side->ep->fid, 12345, NULL));
	REFUSED(fi_control(&world.domain->fid, FI_GETWAIT, &fd));
	fids[0] = &world.domain->fid;
	REFUSED(fi_trywait(world.fabric, fids, 1));
	still_serves(&world);
	close_world(&world);
}

/* Objects of another domain. */
static void other_domain(void)
{
	struct options options = all;
	struct world world, other;
	struct fid_ep *ep, *srx;
	struct fid_stx *stx;

	needs_ours();
	open_world(&world, &options);
	open_world(&other, &options);
	OK(fi_srx_context(other.domain, NULL, &srx, NULL));
	OK(fi_stx_context(other.domain, NULL, &stx, NULL));
	OK(fi_endpoint(world.domain, world.info, &ep, NULL));
	REFUSED(fi_ep_bind(ep, &other.side[0].rx->fid, FI_RECV));
	REFUSED(fi_ep_bind(ep, &other.side[0].av->fid, 0));
	REFUSED(fi_ep_bind(ep, &srx->fid, 0));
	REFUSED(fi_ep_bind(ep, &stx->fid, 0));
	OK(fi_close(&ep->fid));
	OK(fi_close(&srx->fid));
	OK(fi_close(&stx->fid));
	still_serves(&world);
	close_world(&other);
	still_serves(&world);
	close_world(&world);
}

/* Calls on what was closed. */
static void closed_objects(void)
{
	struct options options = { .counters = true };
	struct world world;
	struct side side;
	struct fid_domain *domain;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_attr attr = { 0 };
	struct fid_ep *ep;
	struct fid_cq *queue;
	fi_addr_t peer;

	needs_ours();
	open_world(&world, &options);
	memset(&side, 0, sizeof(side));
	open_side(&world, &side);
	close_side(&side);
	REFUSED(fi_send(side.ep, "x", 1, NULL, 0, NULL));
	REFUSED(fi_tinject(side.ep, "x", 1, 0, 1));
	REFUSED(fi_recv(side.ep, &peer, 1, NULL, 0, NULL));
	REFUSED(fi_cq_read(side.rx, &entry, 1));
	REFUSED(fi_cq_readerr(side.rx, (struct fi_cq_err_entry *)&(struct fi_cq_err_entry){ 0 }, 0));
	REFUSED(fi_av_insert(side.av, world.side[0].name, 1, &peer, 0, NULL));
	REFUSED(fi_cntr_add(side.sent, 1));
	REFUSED(fi_cntr_wait(side.sent, 1, 0));
	(void)fi_cntr_read(side.sent);
	REFUSED(fi_close(&side.ep->fid));
	REFUSED(fi_close(&side.rx->fid));
	REFUSED(fi_close(&side.av->fid));
	REFUSED(fi_enable(side.ep));
	/* As the argument of another. */
	OK(fi_endpoint(world.domain, world.info, &ep, NULL));
	FAILS(fi_ep_bind(ep, &side.av->fid, 0), FI_EINVAL);
	FAILS(fi_ep_bind(ep, &side.rx->fid, FI_RECV), FI_EINVAL);
	OK(fi_close(&ep->fid));
	OK(fi_domain(world.fabric, world.info, &domain, NULL));
	OK(fi_close(&domain->fid));
	REFUSED(fi_cq_open(domain, &attr, &queue, NULL));
	REFUSED(fi_close(&domain->fid));
	still_serves(&world);
	close_world(&world);
}

/* What others use can't be closed. */
static void in_use(void)
{
	struct options options = { .counters = true };
	struct world world;
	struct side *side = &world.side[0];
	static char memory[64];
	struct region region;

	needs_ours();
	open_world(&world, &options);
	FAILS(fi_close(&world.fabric->fid), FI_EBUSY);
	FAILS(fi_close(&world.domain->fid), FI_EBUSY);
	FAILS(fi_close(&side->tx->fid), FI_EBUSY);
	FAILS(fi_close(&side->rx->fid), FI_EBUSY);
	FAILS(fi_close(&side->av->fid), FI_EBUSY);
	FAILS(fi_close(&side->sent->fid), FI_EBUSY);
	region = register_of(&world, side, memory, sizeof(memory), FI_SEND);
	still_serves(&world);
	close_side(&world.side[0]);
	close_side(&world.side[1]);
	FAILS(fi_close(&world.domain->fid), FI_EBUSY);
	OK(fi_close(&region.mr->fid));
	OK(fi_close(&world.domain->fid));
	OK(fi_close(&world.fabric->fid));
	fi_freeinfo(world.info);
}

/* More than the limits that the attributes tell. */
static void too_much(void)
{
	struct world world;
	struct side *side = &world.side[0];
	enum { PIECES = 64 };
	static char memory[PIECES][8];
	struct iovec pieces[PIECES];
	struct fi_rma_iov there[PIECES];
	struct fi_msg_rma message = { .msg_iov = pieces, .iov_count = 1, .rma_iov = there };
	struct fid_mr *mr;
	char *large;
	size_t length;
	fi_addr_t to;

	needs_ours();
	open_world(&world, &all);
	to = side->to[1];
	for (int i = 0; i < PIECES; i++) {
		pieces[i] = (struct iovec){ memory[i], 8 };
		there[i] = (struct fi_rma_iov){ .addr = 0, .len = 8, .key = 0 };
	}
	CHECK(world.info->tx_attr->iov_limit < PIECES && world.info->rx_attr->iov_limit < PIECES);
	FAILS(fi_sendv(side->ep, pieces, NULL, world.info->tx_attr->iov_limit + 1, to, NULL), FI_EINVAL);
	FAILS(fi_tsendv(side->ep, pieces, NULL, world.info->tx_attr->iov_limit + 1, to, 1, NULL), FI_EINVAL);
	FAILS(fi_tsendv(side->ep, pieces, NULL, PIECES, to, 1, NULL), FI_EINVAL);
	FAILS(fi_recvv(side->ep, pieces, NULL, world.info->rx_attr->iov_limit + 1, to, NULL), FI_EINVAL);
	FAILS(fi_sendv(side->ep, pieces, NULL, SIZE_MAX, to, NULL), FI_EINVAL);
	FAILS(fi_writev(side->ep, pieces, NULL, PIECES, to, 0, 0, NULL), FI_EINVAL);
	FAILS(fi_readv(side->ep, pieces, NULL, PIECES, to, 0, 0, NULL), FI_EINVAL);
	message.addr = to;
	message.rma_iov_count = world.info->tx_attr->rma_iov_limit + 1;
	REFUSED(fi_writemsg(side->ep, &message, 0));
	message.rma_iov_count = SIZE_MAX;
	REFUSED(fi_readmsg(side->ep, &message, 0));
	REFUSED(fi_mr_regv(world.domain, pieces, world.info->domain_attr->mr_iov_limit + 1, FI_SEND, 0, 1, 0, &mr, NULL));
	length = world.info->tx_attr->inject_size + 1;
	large = calloc(1, length);
	FAILS(fi_inject(side->ep, large, length, to), FI_EINVAL);
	FAILS(fi_inject_write(side->ep, large, length, to, 0, 0), FI_EINVAL);
	FAILS(fi_send(side->ep, large, SIZE_MAX, NULL, to, NULL), FI_EMSGSIZE);
	free(large);
	/* Two pieces that together wrap around. */
	pieces[0].iov_len = SIZE_MAX;
	pieces[1].iov_len = 2;
	REFUSED(fi_sendv(side->ep, pieces, NULL, 2, to, NULL));
	REFUSED(fi_recvv(side->ep, pieces, NULL, 2, to, NULL));
	/* No such type, operation, too many numbers. */
	REFUSED(fi_atomic(side->ep, memory, 1, NULL, to, 0, 0, 1000, FI_SUM, NULL));
	REFUSED(fi_atomic(side->ep, memory, 1, NULL, to, 0, 0, FI_UINT64, 1000, NULL));
	REFUSED(fi_atomic(side->ep, memory, SIZE_MAX / 4, NULL, to, 0, 0, FI_UINT64, FI_SUM, NULL));
	still_serves(&world);
	close_world(&world);
}

/* Indices that aren't there, and flags that there aren't. */
static void unknown_values(void)
{
	struct world world;
	struct side *side = &world.side[0];
	static char memory[64];
	struct iovec piece = { memory, 8 };
	struct fi_msg message = { .msg_iov = &piece, .iov_count = 1 };
	struct fi_msg_tagged tagged = { .msg_iov = &piece, .iov_count = 1 };
	struct fi_cq_attr cq = { .format = 77 };
	struct fi_cq_attr wait = { .wait_obj = 77 };
	struct fi_av_attr av = { .type = 77 };
	struct fid_cq *queue;
	struct fid_av *vector;
	struct fid_ep *ep;
	struct fid_mr *mr;
	const uint64_t unknown = 1ULL << 43;

	needs_ours();
	open_world(&world, &all);
	message.addr = tagged.addr = side->to[1];
	FAILS(fi_send(side->ep, memory, 8, NULL, 1234, NULL), FI_EINVAL);
	FAILS(fi_inject(side->ep, memory, 8, 1234), FI_EINVAL);
	FAILS(fi_send(side->ep, memory, 8, NULL, FI_ADDR_UNSPEC, NULL), FI_EINVAL);
	FAILS(fi_write(side->ep, memory, 8, NULL, 1ULL << 62, 0, 0, NULL), FI_EINVAL);
	REFUSED(fi_sendmsg(side->ep, &message, unknown));
	REFUSED(fi_recvmsg(side->ep, &message, unknown));
	REFUSED(fi_tsendmsg(side->ep, &tagged, unknown));
	REFUSED(fi_trecvmsg(side->ep, &tagged, unknown));
	/* Discard without peek or claim. */
	REFUSED(fi_trecvmsg(side->ep, &tagged, FI_DISCARD));
	/* A claim of nothing. */
	REFUSED(fi_trecvmsg(side->ep, &tagged, FI_CLAIM));
	REFUSED(fi_cq_open(world.domain, &cq, &queue, NULL));
	REFUSED(fi_cq_open(world.domain, &wait, &queue, NULL));
	REFUSED(fi_av_open(world.domain, &av, &vector, NULL));
	OK(fi_endpoint(world.domain, world.info, &ep, NULL));
	REFUSED(fi_ep_bind(ep, &side->rx->fid, unknown));
	REFUSED(fi_ep_bind(ep, &side->rx->fid, 0));
	/* An endpoint of nothing. */
	REFUSED(fi_enable(ep));
	OK(fi_close(&ep->fid));
	REFUSED(fi_mr_reg(world.domain, memory, 8, FI_REMOTE_READ, 16, 1, 0, &mr, NULL));
	REFUSED(fi_mr_reg(world.domain, memory, 8, FI_REMOTE_READ, 0, 1, unknown, &mr, NULL));
	REFUSED(fi_mr_reg(world.domain, memory, 8, unknown, 0, 1, 0, &mr, NULL));
	REFUSED(fi_mr_reg(world.domain, memory, SIZE_MAX, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
	still_serves(&world);
	close_world(&world);
}

/* How often the device sends again after RNR is at most 7, and set before the endpoint is enabled. */
static void retries(void)
{
	struct world world;
	struct fid_ep *ep;
	size_t number = 3, length = sizeof(number);

	needs_ours();
	open_world(&world, &all);
	OK(fi_endpoint(world.domain, world.info, &ep, NULL));
	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &number, sizeof(number)));
	number = 8;
	FAILS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &number, sizeof(number)), FI_EINVAL);
	number = SIZE_MAX;
	FAILS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &number, sizeof(number)), FI_EINVAL);
	number = 1;
	FAILS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &number, 1), FI_EINVAL);
	OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &number, &length));
	EQUAL(number, 3);
	OK(fi_close(&ep->fid));
	FAILS(fi_setopt(&world.side[0].ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &number, sizeof(number)),
	      FI_EOPBADSTATE);
	still_serves(&world);
	close_world(&world);
}

/* What isn't offered answers so. */
static void not_offered_calls(void)
{
	struct world world;
	struct side *side = &world.side[0];
	struct fi_collective_attr attr = { .op = FI_SUM, .datatype = FI_UINT64 };
	struct fi_cntr_attr counter = { .events = FI_CNTR_EVENTS_COMP + 1 };
	struct iovec piece = { NULL, 8 };
	struct fi_msg message = { .msg_iov = &piece, .iov_count = 1 };
	struct fi_msg_rma write = { .msg_iov = &piece, .iov_count = 1 };
	struct fi_mr_attr memory = { .mr_iov = &piece, .iov_count = 1, .access = FI_REMOTE_READ };
	struct options options = all;
	struct fid_ep *ep;
	struct fid_mc *group;
	struct fid_mr *mr;
	struct fid_cntr *cntr;
	struct fi_cq_attr pollfd = { .wait_obj = FI_WAIT_POLLFD };
	struct fid_cq *queue;
	fi_addr_t peer;
	void *table;
	uint64_t value = 1;

	needs_ours();
	options.counters = true;
	open_world(&world, &options);
	message.addr = write.addr = side->to[1];
	FAILS(fi_query_collective(world.domain, FI_BARRIER, &attr, 0), FI_ENOSYS);
	FAILS(fi_barrier(side->ep, 0, NULL), FI_ENOSYS);
	FAILS(fi_allreduce(side->ep, &value, 1, NULL, &value, NULL, 0, FI_UINT64, FI_SUM, 0, NULL), FI_ENOSYS);
	FAILS(fi_control(&world.domain->fid, FI_QUEUE_WORK, &value), FI_ENOSYS);
	FAILS(fi_scalable_ep(world.domain, world.info, &ep, NULL), FI_ENOSYS);
	FAILS(fi_tx_context(side->ep, 0, NULL, &ep, NULL), FI_ENOSYS);
	FAILS(fi_rx_context(side->ep, 0, NULL, &ep, NULL), FI_ENOSYS);
	FAILS(fi_ep_alias(side->ep, &ep, 0), FI_ENOSYS);
	FAILS(fi_av_insertsvc(side->av, "127.0.0.1", "7000", &peer, 0, NULL), FI_ENOSYS);
	FAILS(fi_av_insertsym(side->av, "127.0.0.1", 1, "7000", 1, &peer, 0, NULL), FI_ENOSYS);
	FAILS(fi_cq_open(world.domain, &pollfd, &queue, NULL), FI_ENOSYS);
	FAILS(fi_join(side->ep, side->name, 0, &group, NULL), FI_ENOSYS);
	FAILS(fi_open_ops(&world.domain->fid, "no such table", 0, &table, NULL), FI_ENOSYS);
	FAILS(fi_set_ops(&world.domain->fid, "no such table", 0, &value, NULL), FI_ENOSYS);
	FAILS(fi_cntr_open(world.domain, &counter, &cntr, NULL), FI_ENOSYS);
	/* Triggered: by a flag of a call. */
	REFUSED(fi_sendmsg(side->ep, &message, FI_TRIGGER));
	REFUSED(fi_recvmsg(side->ep, &message, FI_TRIGGER));
	REFUSED(fi_writemsg(side->ep, &write, FI_TRIGGER));
	/* Memory of a device; events of writes to a region. */
	piece.iov_base = &value;
	memory.iface = FI_HMEM_CUDA;
	FAILS(fi_mr_regattr(world.domain, &memory, 0, &mr), FI_ENOSYS);
	REFUSED(fi_mr_reg(world.domain, &value, 8, FI_REMOTE_WRITE, 0, 1, FI_RMA_EVENT, &mr, NULL));
	OK(fi_mr_reg(world.domain, &value, 8, FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	REFUSED(fi_mr_bind(mr, &side->sent->fid, FI_REMOTE_WRITE));
	FAILS(fi_mr_enable(mr), FI_ENOSYS);
	FAILS(fi_mr_refresh(mr, &piece, 1, 0), FI_ENOSYS);
	OK(fi_close(&mr->fid));
	still_serves(&world);
	close_world(&world);
}

/* A failed call of each kind neither keeps memory nor places: many don't use up anything. */
static void many_failures(void)
{
	struct world world;
	struct side *side = &world.side[0];
	static char memory[64];

	needs_ours();
	open_world(&world, &all);
	for (int i = 0; i < 20000; i++) {
		struct fid_mr *mr;

		FAILS(fi_send(side->ep, memory, 8, NULL, 1234, NULL), FI_EINVAL);
		FAILS(fi_write(side->ep, memory, 8, NULL, 1234, 0, 0, NULL), FI_EINVAL);
		REFUSED(fi_mr_reg(world.domain, memory, 8, FI_REMOTE_READ, 16, 1, 0, &mr, NULL));
	}
	still_serves(&world);
	close_world(&world);
}

const struct program refused[] = {
	{ "refused-null-pointers", null_pointers },
	{ "refused-wrong-class", wrong_class },
	{ "refused-other-domain", other_domain },
	{ "refused-closed-objects", closed_objects },
	{ "refused-in-use", in_use },
	{ "refused-too-much", too_much },
	{ "refused-unknown-values", unknown_values },
	{ "refused-retries", retries },
	{ "refused-not-offered", not_offered_calls },
	{ "refused-many-failures", many_failures },
	{ NULL, NULL },
};

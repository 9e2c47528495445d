/* Contexts that endpoints share: of receives (fi_srx_context) and of sends (fi_stx_context). */
#include "program.h"

enum { LONG = 1 << 20 };

/* fi_rx_size_left, which headers call deprecated. */
#define LEFT(srx) ((srx)->ops->rx_size_left(srx))

static void receives(void)
{
	static char sent[LONG], here[4][LONG];
	struct options options = { .sides = 3, .shared_rx = 16 };
	struct world world;
	struct side *from, *at[2];
	struct iovec pieces[2] = { { here[0], 3 }, { here[0] + 10, 5 } };
	struct fi_msg_tagged message = { .msg_iov = pieces, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .tag = 8,
					 .context = CONTEXT(4) };

	open_world(&world, &options);
	from = &world.side[0];
	at[0] = &world.side[1];
	at[1] = &world.side[2];
	/* The first that was posted takes the first message, which completes where it came to. */
	for (int i = 0; i < 2; i++)
		POST(&world, fi_recv(world.srx, here[i], 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	for (int i = 1; i >= 0; i--) {
		POST(&world, fi_inject(from->ep, i ? "b" : "a", 1, from->to[i + 1]));
		DONE(&world, at[i]->rx, CONTEXT(1 - i), FI_RECV | FI_MSG);
		EQUAL(here[1 - i][0], i ? 'b' : 'a');
	}
	/* Those that arrived before. */
	for (int i = 0; i < 2; i++)
		POST(&world, fi_tinject(from->ep, i ? "d" : "c", 1, from->to[i + 1], 4 + i));
	EMPTY(&world, at[0]->rx);
	POST(&world, fi_trecv(world.srx, here[3], 8, NULL, FI_ADDR_UNSPEC, 5, 0, CONTEXT(3)));
	DONE(&world, at[1]->rx, CONTEXT(3), FI_RECV | FI_TAGGED);
	EQUAL(here[3][0], 'd');
	POST(&world, fi_trecv(world.srx, here[2], 8, NULL, FI_ADDR_UNSPEC, 0, 7, CONTEXT(2)));
	DONE(&world, at[0]->rx, CONTEXT(2), FI_RECV | FI_TAGGED);
	EQUAL(here[2][0], 'c');
	/* Pieces, and flags. */
	POST(&world, fi_trecvmsg(world.srx, &message, FI_COMPLETION));
	POST(&world, fi_tinject(from->ep, "abcdefgh", 8, from->to[2], 8));
	DONE(&world, at[1]->rx, CONTEXT(4), FI_RECV | FI_TAGGED);
	SAME_BYTES(here[0], "abc", 3);
	SAME_BYTES(here[0] + 10, "defgh", 5);
	POST(&world, fi_recvv(world.srx, pieces, NULL, 2, FI_ADDR_UNSPEC, CONTEXT(5)));
	POST(&world, fi_inject(from->ep, "ijklmnop", 8, from->to[1]));
	DONE(&world, at[0]->rx, CONTEXT(5), FI_RECV | FI_MSG);
	SAME_BYTES(here[0] + 10, "lmnop", 5);
	/* Long ones. */
	for (int i = 0; i < 2; i++) {
		fill(sent, LONG, i);
		POST(&world, fi_recv(world.srx, here[i], LONG, NULL, FI_ADDR_UNSPEC, CONTEXT(6)));
		POST(&world, fi_send(from->ep, sent, LONG, NULL, from->to[i + 1], CONTEXT(7)));
		DONE(&world, at[i]->rx, CONTEXT(6), FI_RECV | FI_MSG);
		DONE(&world, from->tx, CONTEXT(7), FI_SEND | FI_MSG);
		FILLED(here[i], LONG, i);
	}
	for (int i = 0; i < world.sides; i++)
		EMPTY(&world, world.side[i].rx);
	close_world(&world);
}

static void limits(void)
{
	char here[8];
	struct options options = { .shared_rx = 4 };
	struct world world;
	struct fi_cq_err_entry error;
	struct fi_msg message = { .addr = FI_ADDR_UNSPEC };
	struct fid_ep *none;
	struct fi_rx_attr attr;

	open_world(&world, &options);
	EQUAL(LEFT(world.srx), 4);
	for (int i = 0; i < 3; i++)
		OK(fi_recv(world.srx, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	OK(fi_trecv(world.srx, here, 8, NULL, FI_ADDR_UNSPEC, 1, 0, CONTEXT(3)));
	EQUAL(LEFT(world.srx), 0);
	FAILS(fi_recv(world.srx, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(4)), FI_EAGAIN);
	/* No endpoint has a cancelled receive, so it is reported to the first. */
	for (int i = 3; i > 0; i--) {
		OK(fi_cancel(&world.srx->fid, CONTEXT(i)));
		error = TAKE_ERROR(&world, world.side[0].rx);
		EQUAL(error.err, FI_ECANCELED);
		EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(i));
		KIND(error.flags, FI_RECV | (i == 3 ? FI_TAGGED : FI_MSG));
		EQUAL(LEFT(world.srx), 4 - i);
	}
	OK(fi_cancel(&world.srx->fid, CONTEXT(3)));
	EMPTY(&world, world.side[0].rx);
	/* Neither buffers for many messages nor other calls than receives; endpoints have no receives of their own. */
	FAILS(fi_recvmsg(world.srx, &message, FI_MULTI_RECV), FI_EBADFLAGS);
	FAILS(fi_recvmsg(world.srx, &message, FI_PEEK), FI_EBADFLAGS);
	FAILS(fi_inject(world.srx, here, 8, 0), FI_ENOSYS);
	FAILS(fi_recv(world.side[1].ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(4)), FI_EINVAL);
	attr = *world.info->rx_attr;
	attr.caps |= FI_DIRECTED_RECV;
	FAILS(fi_srx_context(world.domain, &attr, &none, NULL), FI_EOPNOTSUPP);
	attr.caps = FI_MSG;
	attr.op_flags = FI_INJECT;
	FAILS(fi_srx_context(world.domain, &attr, &none, NULL), FI_EBADFLAGS);
	FAILS(fi_close(&world.srx->fid), FI_EBUSY);
	/* One receive is still posted. */
	close_world(&world);
	FAILS(fi_recv(world.srx, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(0)), FI_EBADF);
}

/* A queue of an endpoint that was closed may be closed, and cancelled receives go to the next endpoint's. */
static void endpoint_that_left(void)
{
	char here[8];
	struct options options = { .shared_rx = 4 };
	struct world world;

	open_world(&world, &options);
	for (int i = 0; i < 2; i++)
		OK(fi_recv(world.srx, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(i)));
	close_side(&world.side[0]);
	OK(fi_cancel(&world.srx->fid, CONTEXT(0)));
	EQUAL((uintptr_t)TAKE_ERROR(&(struct world){ 0 }, world.side[1].rx).op_context, (uintptr_t)CONTEXT(0));
	close_side(&world.side[1]);
	OK(fi_cancel(&world.srx->fid, CONTEXT(1)));
	/* With all endpoints gone it serves new ones. */
	OK(fi_recv(world.srx, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
	for (int i = 0; i < 2; i++)
		open_side(&world, &world.side[i]);
	world.side[0].to[1] = introduce(&world.side[0], &world.side[1]);
	POST(&world, fi_inject(world.side[0].ep, "z", 1, world.side[0].to[1]));
	DONE(&world, world.side[1].rx, CONTEXT(2), FI_RECV | FI_MSG);
	close_world(&world);
}

static void sends(void)
{
	static char sent[LONG], here[4][LONG];
	struct options options = { .sides = 3, .shared_tx = 4 };
	struct world world;
	struct side *at;

	open_world(&world, &options);
	at = &world.side[2];
	fill(sent, LONG, 1);
	/* They wait for their receives. */
	for (int i = 0; i < 4; i++)
		OK(fi_send(world.side[i & 1].ep, sent, LONG, NULL, world.side[i & 1].to[2], CONTEXT(i)));
	for (int i = 0; i < 3; i++)
		FAILS(fi_send(world.side[i].ep, sent, 8, NULL, world.side[i].to[2], CONTEXT(9)), FI_EAGAIN);
	for (int i = 0; i < 4; i++)
		POST(&world, fi_recv(at->ep, here[i], LONG, NULL, FI_ADDR_UNSPEC, CONTEXT(10)));
	for (int i = 0; i < 4; i++)
		DONE(&world, at->rx, CONTEXT(10), FI_RECV | FI_MSG);
	for (int i = 0; i < 4; i++) {
		DONE(&world, world.side[i & 1].tx, CONTEXT(i), FI_SEND | FI_MSG);
		FILLED(here[i], LONG, 1);
	}
	POST(&world, fi_send(world.side[0].ep, sent, 8, NULL, world.side[0].to[2], CONTEXT(9)));
	DONE(&world, world.side[0].tx, CONTEXT(9), FI_SEND | FI_MSG);
	FAILS(fi_close(&world.stx->fid), FI_EBUSY);
	close_world(&world);
}

static void entries(void)
{
	struct options options = { .shared_tx = 4, .shared_rx = 4 };
	struct fi_info *info = info_of(&options), *found;
	struct fi_info *hints = hints_of(&options);
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep, *srx;
	struct fid_stx *stx;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };

	EQUAL(info->ep_attr->tx_ctx_cnt, FI_SHARED_CONTEXT);
	EQUAL(info->ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
	CHECK(info->domain_attr->max_ep_stx_ctx > 0);
	CHECK(info->domain_attr->max_ep_srx_ctx > 0);
	EQUAL((info->caps | info->rx_attr->caps) & (FI_MULTI_RECV | FI_DIRECTED_RECV), 0);
	for (int i = 0; i < 2; i++) {
		hints->caps = FI_MSG | (i ? FI_MULTI_RECV : FI_DIRECTED_RECV);
		FAILS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), FI_ENODATA);
	}
	fi_freeinfo(hints);

	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &av->fid, 0));
	/* The defaults. */
	OK(fi_stx_context(domain, NULL, &stx, NULL));
	OK(fi_srx_context(domain, NULL, &srx, NULL));
	OK(fi_enable(srx));
	CHECK(LEFT(srx) > 0);
	FAILS(fi_enable(ep), FI_EOPBADSTATE);
	OK(fi_ep_bind(ep, &stx->fid, 0));
	FAILS(fi_ep_bind(ep, &stx->fid, 0), FI_EINVAL);
	FAILS(fi_enable(ep), FI_EOPBADSTATE);
	FAILS(fi_ep_bind(ep, &srx->fid, FI_RECV), FI_EBADFLAGS);
	OK(fi_ep_bind(ep, &srx->fid, 0));
	OK(fi_enable(ep));
	OK(fi_close(&ep->fid));
	OK(fi_close(&stx->fid));
	OK(fi_close(&srx->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

const struct program shared[] = {
	{ "shared-receives", receives },
	{ "shared-limits", limits },
	{ "shared-left", endpoint_that_left },
	{ "shared-sends", sends },
	{ "shared-entries", entries },
	{ 0 },
};

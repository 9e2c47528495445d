/* Opens libibverbs and libefa at run time, as collective libraries and language bindings do, and sends a message by
 * the functions that the handles give and by the inline functions of the headers. Prints a line for each step; the
 * exit code is 0 if all went well.
 *
 * symbols_ibverbs.h and symbols_efa.h, made by the test, list the symbols with their versions. Headers of rdma-core
 * before 40 need -DBEFORE_EFA_1_2. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

/* What inline functions of the headers call if a context lacks their operation. This device's has both, and the program
 * is not linked with libibverbs. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attributes)
{
	(void)context, (void)port, (void)attributes;
	return ENOSYS;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
	(void)context, (void)attributes;
	return ENOSYS;
}

struct versioned {
	const char *name;
	const char *version;
};

static const struct versioned ibverbs_symbols[] = {
#include "symbols_ibverbs.h"
};

static const struct versioned efa_symbols[] = {
#include "symbols_efa.h"
};

static void *open_library(const char *name)
{
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		printf("cannot open %s: %s\n", name, dlerror());
		exit(1);
	}
	return handle;
}

/* Symbols that the handle lacks, with or without the version. */
static int missing(void *handle, const struct versioned *symbols, size_t count)
{
	int absent = 0;
	for (size_t i = 0; i < count; i++) {
		void *by_name = dlsym(handle, symbols[i].name);
		void *by_version = dlvsym(handle, symbols[i].name, symbols[i].version);
		if (!by_name || by_name != by_version) {
			printf("%s@%s: %p by dlsym, %p by dlvsym\n", symbols[i].name, symbols[i].version,
			       by_name, by_version);
			absent++;
		}
	}
	return absent;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define FIND(handle, name) __typeof__(&name) my_##name = (__typeof__(&name))dlsym(handle, #name)
#define CHECK(what)                                                             \
	do {                                                                    \
		if (!(what)) {                                                  \
			printf("failed: %s, errno %d\n", #what, errno);         \
			return 1;                                               \
		}                                                               \
	} while (0)

#define QKEY 0x11111111

/* Sends 64 bytes from a queue pair to itself. */
static int send_a_message(void *verbs, void *efa, struct ibv_context *context)
{
	FIND(verbs, ibv_alloc_pd);
	FIND(verbs, ibv_dealloc_pd);
	FIND(verbs, ibv_dereg_mr);
	FIND(verbs, ibv_query_gid);
	FIND(verbs, ibv_create_ah);
	FIND(verbs, ibv_destroy_ah);
	FIND(verbs, ibv_modify_qp);
	FIND(verbs, ibv_destroy_qp);
	FIND(verbs, ibv_destroy_cq);
	FIND(verbs, ibv_qp_to_qp_ex);
	FIND(efa, efadv_create_qp_ex);
	/* A macro of the header has this name. */
	struct ibv_mr *(*my_reg_mr)(struct ibv_pd *, void *, size_t, int) =
		(struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, int)) dlsym(verbs, "ibv_reg_mr");

	struct ibv_pd *pd = my_ibv_alloc_pd(context);
	CHECK(pd);
	static char memory[128];
	memset(memory, 7, 64);
	struct ibv_mr *mr = my_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->addr == memory && mr->length == sizeof(memory) && mr->pd == pd);

	struct ibv_cq_init_attr_ex cq_attributes = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
#ifdef BEFORE_EFA_1_2
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attributes);
#else
	FIND(efa, efadv_create_cq);
	struct efadv_cq_init_attr efa_attributes = { .comp_mask = 0 };
	struct ibv_cq_ex *cq =
		my_efadv_create_cq(context, &cq_attributes, &efa_attributes, sizeof(efa_attributes));
#endif
	CHECK(cq);
	struct ibv_qp_init_attr_ex qp_attributes = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_DRIVER,
		.sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct efadv_qp_init_attr srd = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD };
	struct ibv_qp *qp = my_efadv_create_qp_ex(context, &qp_attributes, &srd, sizeof(srd));
	CHECK(qp);
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	CHECK(my_ibv_modify_qp(qp, &attributes, init) == 0);
	attributes.qp_state = IBV_QPS_RTR;
	CHECK(my_ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == 0);
	attributes.qp_state = IBV_QPS_RTS;
	CHECK(my_ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	struct ibv_ah_attr ah_attributes = { .is_global = 1, .port_num = 1 };
	CHECK(my_ibv_query_gid(context, 1, 0, &ah_attributes.grh.dgid) == 0);
	struct ibv_ah *ah = my_ibv_create_ah(pd, &ah_attributes);
	CHECK(ah);

	struct ibv_sge sge = { .addr = (uintptr_t)memory + 64, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &receive, &bad) == 0);
	struct ibv_qp_ex *qpx = my_ibv_qp_to_qp_ex(qp);
	CHECK(qpx);
	ibv_wr_start(qpx);
	qpx->wr_id = 1;
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 64);
	ibv_wr_set_ud_addr(qpx, ah, qp->qp_num, QKEY);
	CHECK(ibv_wr_complete(qpx) == 0);
	for (unsigned completed = 0, looks = 0; completed != 3;) {
		struct ibv_poll_cq_attr poll = { .comp_mask = 0 };
		CHECK(++looks < 100000);
		if (ibv_start_poll(cq, &poll)) {
			usleep(100);
			continue;
		}
		do {
			CHECK(cq->status == IBV_WC_SUCCESS);
			CHECK(cq->wr_id != 2 || ibv_wc_read_byte_len(cq) == 64);
			completed |= (unsigned)cq->wr_id;
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	CHECK(memcmp(memory, memory + 64, 64) == 0);

	CHECK(my_ibv_destroy_qp(qp) == 0);
	CHECK(my_ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	CHECK(my_ibv_destroy_ah(ah) == 0);
	CHECK(my_ibv_dereg_mr(mr) == 0);
	CHECK(my_ibv_dealloc_pd(pd) == 0);
	printf("message sent\n");
	return 0;
}

int main(void)
{
	void *verbs = open_library("libibverbs.so.1");
	void *efa = open_library("libefa.so.1");
	int absent = missing(verbs, ibverbs_symbols, COUNT(ibverbs_symbols));
	absent += missing(efa, efa_symbols, COUNT(efa_symbols));
	printf("%d missing\n", absent);

	FIND(verbs, ibv_get_device_list);
	FIND(verbs, ibv_get_device_name);
	FIND(verbs, ibv_open_device);
	FIND(verbs, ibv_free_device_list);
	FIND(verbs, ibv_close_device);
	FIND(efa, efadv_query_device);
	int count = -1;
	struct ibv_device **list = my_ibv_get_device_list(&count);
	CHECK(list && count > 0);
	printf("device %s\n", my_ibv_get_device_name(list[0]));
	struct ibv_context *context = my_ibv_open_device(list[0]);
	CHECK(context);
	my_ibv_free_device_list(list);
	struct efadv_device_attr attributes;
	memset(&attributes, 0, sizeof(attributes));
	CHECK(my_efadv_query_device(context, &attributes, sizeof(attributes)) == 0);
	CHECK(attributes.max_sq_wr > 0);
	struct ibv_port_attr port;
	CHECK(___ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
	struct ibv_device_attr_ex extended;
	CHECK(ibv_query_device_ex(context, NULL, &extended) == 0);
	if (send_a_message(verbs, efa, context))
		return 1;
	CHECK(my_ibv_close_device(context) == 0);

	/* The machine's libibverbs has what isn't the device's. */
	FIND(verbs, ibv_wc_status_str);
	FIND(verbs, ibv_rate_to_mbps);
	if (my_ibv_wc_status_str && my_ibv_rate_to_mbps)
		printf("real libibverbs: %s, %d\n", my_ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR),
		       my_ibv_rate_to_mbps(IBV_RATE_10_GBPS));
	else
		printf("no real libibverbs\n");
	return absent != 0;
}

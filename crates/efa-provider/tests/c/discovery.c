/* fi_getinfo: each hint is met or the entry is left out. */
#include "program.h"

#include <netdb.h>
#include <netinet/in.h>

/* Of programs that libfabric 1.17 serves, and of newer ones. */
static const uint32_t newer[] = { FI_VERSION(2, 0), FI_VERSION(2, 6) };
static const uint32_t versions[] = { FI_VERSION(1, 5), FI_VERSION(1, 9), FI_VERSION(1, 17) };

static struct fi_info *plain_hints(void)
{
	struct fi_info *hints = fi_allocinfo();

	hints->fabric_attr->prov_name = strdup(provider());
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	return hints;
}

static int ask(uint32_t version, const struct fi_info *hints, struct fi_info **info)
{
	*info = NULL;
	return fi_getinfo(version, NULL, NULL, 0, hints, info);
}

/* What every entry holds, whatever was asked. */
static void check_entry(const struct fi_info *info, uint32_t version)
{
	enum fi_ep_type type = info->ep_attr->type;
	const uint64_t never = FI_MULTICAST | FI_RMA_EVENT | FI_TRIGGER | FI_COLLECTIVE | FI_HMEM | FI_RMA_PMEM;

	CHECK(info->fabric_attr && info->domain_attr && info->ep_attr && info->tx_attr && info->rx_attr);
	CHECK(info->fabric_attr->name && *info->fabric_attr->name);
	CHECK(info->domain_attr->name && *info->domain_attr->name);
	CHECK(info->fabric_attr->prov_name && *info->fabric_attr->prov_name);
	CHECK(info->tx_attr->size > 0 && info->rx_attr->size > 0);
	CHECK(info->tx_attr->iov_limit > 0 && info->rx_attr->iov_limit > 0);
	CHECK(info->ep_attr->max_msg_size > 0);
	CHECK(!(info->tx_attr->caps & FI_RECV));
	CHECK(!(info->rx_attr->caps & FI_SEND));
	if (info->src_addr)
		CHECK(info->src_addrlen > 0);
	EQUAL(FI_MAJOR(info->fabric_attr->api_version), FI_MAJOR(version));
	if (is_ours()) {
		CHECK(type == FI_EP_RDM || type == FI_EP_MSG);
		EQUAL(info->caps & never, 0);
		EQUAL(info->domain_attr->caps & never, 0);
		EQUAL(info->addr_format, type == FI_EP_MSG ? info->addr_format : FI_ADDR_EFA);
	}
	if (version <= FI_VERSION(1, 5))
		EQUAL(info->domain_attr->mr_mode & (FI_MR_HMEM | FI_MR_COLLECTIVE), 0);
}

/* Without hints all of the provider's entries come, none with a provider of libfabric's stacked on ours. */
static void no_hints(void)
{
	for (size_t i = 0; i < COUNT(versions); i++) {
		struct fi_info *hints = plain_hints(), *info;
		int rdm = 0, msg = 0;

		OK(ask(versions[i], NULL, &info));
		for (struct fi_info *entry = info; entry; entry = entry->next) {
			const char *name = entry->fabric_attr->prov_name;

			if (!strncmp(name, provider(), strlen(provider())) && is_ours())
				SAME_TEXT(name, provider());
		}
		fi_freeinfo(info);
		OK(ask(versions[i], hints, &info));
		for (struct fi_info *entry = info; entry; entry = entry->next) {
			if (is_ours())
				SAME_TEXT(entry->fabric_attr->prov_name, provider());
			check_entry(entry, versions[i]);
			rdm += entry->ep_attr->type == FI_EP_RDM;
			msg += entry->ep_attr->type == FI_EP_MSG;
		}
		if (is_ours())
			CHECK(rdm > 0 && msg > 0);
		fi_freeinfo(info);
		fi_freeinfo(hints);
	}
}

/* An answer to another answer as hints has all of its attributes. */
static void check_same(const struct fi_info *again, const struct fi_info *entry)
{
	const struct fi_tx_attr *tx = again->tx_attr;
	const struct fi_rx_attr *rx = again->rx_attr;
	const struct fi_domain_attr *domain = again->domain_attr;

	EQUAL(again->ep_attr->type, entry->ep_attr->type);
	EQUAL(again->caps & entry->caps, entry->caps);
	SAME_TEXT(domain->name, entry->domain_attr->name);
	SAME_TEXT(again->fabric_attr->name, entry->fabric_attr->name);
	EQUAL(domain->mr_mode, entry->domain_attr->mr_mode);
	if (!is_ours())
		return;
	EQUAL(again->caps, entry->caps);
	EQUAL(again->mode, entry->mode);
	EQUAL(again->addr_format, entry->addr_format);
	EQUAL(tx->caps, entry->tx_attr->caps);
	EQUAL(tx->op_flags, entry->tx_attr->op_flags);
	EQUAL(tx->msg_order, entry->tx_attr->msg_order);
	EQUAL(tx->comp_order, entry->tx_attr->comp_order);
	EQUAL(tx->inject_size, entry->tx_attr->inject_size);
	EQUAL(tx->size, entry->tx_attr->size);
	EQUAL(tx->iov_limit, entry->tx_attr->iov_limit);
	EQUAL(tx->rma_iov_limit, entry->tx_attr->rma_iov_limit);
	EQUAL(rx->caps, entry->rx_attr->caps);
	EQUAL(rx->op_flags, entry->rx_attr->op_flags);
	EQUAL(rx->msg_order, entry->rx_attr->msg_order);
	EQUAL(rx->comp_order, entry->rx_attr->comp_order);
	EQUAL(rx->total_buffered_recv, entry->rx_attr->total_buffered_recv);
	EQUAL(rx->size, entry->rx_attr->size);
	EQUAL(rx->iov_limit, entry->rx_attr->iov_limit);
	EQUAL(domain->threading, entry->domain_attr->threading);
	EQUAL(domain->control_progress, entry->domain_attr->control_progress);
	EQUAL(domain->data_progress, entry->domain_attr->data_progress);
	EQUAL(domain->resource_mgmt, entry->domain_attr->resource_mgmt);
	EQUAL(domain->av_type, entry->domain_attr->av_type);
	EQUAL(domain->mr_key_size, entry->domain_attr->mr_key_size);
	EQUAL(domain->cq_data_size, entry->domain_attr->cq_data_size);
	EQUAL(domain->cq_cnt, entry->domain_attr->cq_cnt);
	EQUAL(domain->ep_cnt, entry->domain_attr->ep_cnt);
	EQUAL(domain->mr_cnt, entry->domain_attr->mr_cnt);
	EQUAL(domain->mr_iov_limit, entry->domain_attr->mr_iov_limit);
	EQUAL(domain->max_err_data, entry->domain_attr->max_err_data);
	EQUAL(again->ep_attr->protocol, entry->ep_attr->protocol);
	EQUAL(again->ep_attr->protocol_version, entry->ep_attr->protocol_version);
	EQUAL(again->ep_attr->max_msg_size, entry->ep_attr->max_msg_size);
	EQUAL(again->ep_attr->mem_tag_format, entry->ep_attr->mem_tag_format);
}

/* Hints in several ways, so that answers differ in what they repeat of them. */
static void vary(struct fi_info *hints, int way)
{
	if (way == 1) {
		hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
		hints->domain_attr->mr_mode = 0;
		hints->domain_attr->av_type = FI_AV_TABLE;
		hints->domain_attr->threading = FI_THREAD_DOMAIN;
		hints->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
		hints->rx_attr->op_flags = FI_COMPLETION;
	} else if (way == 2) {
		hints->caps = FI_MSG | FI_RMA;
		hints->domain_attr->mr_mode = 0;
		hints->domain_attr->av_type = FI_AV_MAP;
		hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
		hints->domain_attr->control_progress = FI_PROGRESS_AUTO;
		hints->tx_attr->op_flags = FI_INJECT;
		hints->tx_attr->iov_limit = 9;
		hints->rx_attr->iov_limit = 7;
	}
}

/* Each answer is accepted as hints, and gives itself again. */
static void own_answer(void)
{
	for (size_t i = 0; i < COUNT(versions) + COUNT(newer); i++)
		for (int way = 0; way < 3; way++) {
			bool is_newer = i >= COUNT(versions);
			uint32_t version = is_newer ? newer[i - COUNT(versions)] : versions[i];
			struct fi_info *hints = plain_hints(), *info, *again;

			if (!is_ours() && (is_newer || way))
				continue;
			vary(hints, way);
			OK(is_newer ? library()->getinfo(version, NULL, NULL, 0, hints, &info) : ask(version, hints, &info));
			for (struct fi_info *entry = info; entry; entry = entry->next) {
				if (!is_ours() && entry->ep_attr->type != FI_EP_RDM)
					continue;
				if (is_newer) {
					OK(library()->getinfo(version, NULL, NULL, 0, entry, &again));
					EQUAL(again->fabric_attr->api_version, version);
				} else {
					OK(ask(version, entry, &again));
					check_entry(again, version);
				}
				check_same(again, entry);
				fi_freeinfo(again);
			}
			fi_freeinfo(info);
			fi_freeinfo(hints);
		}
}

/* The endpoint of an answer opens, for each version. */
static void answers_open(void)
{
	for (size_t i = 0; i < COUNT(versions); i++) {
		struct options options = { .version = versions[i] };
		struct world world;
		char here[8];

		open_world(&world, &options);
		POST(&world, fi_tinject(world.side[0].ep, "v", 1, world.side[0].to[1], 3));
		POST(&world, fi_trecv(world.side[1].ep, here, 8, NULL, FI_ADDR_UNSPEC, 3, 0, CONTEXT(0)));
		DONE(&world, world.side[1].rx, CONTEXT(0), FI_RECV | FI_TAGGED);
		close_world(&world);
	}
}

/* A hint: sets it, and checks that an answer meets it. */
struct hint {
	const char *what;
	void (*set)(struct fi_info *hints);
	bool (*met)(const struct fi_info *info);
};

#define HINT(name, assignment, condition) \
	static void set_##name(struct fi_info *hints) { assignment; } \
	static bool met_##name(const struct fi_info *info) { return condition; }
#define CAPS(name, bits) HINT(name, hints->caps = bits, ((info->caps & (bits)) == (bits)))

CAPS(msg, FI_MSG)
CAPS(tagged, FI_TAGGED)
CAPS(rma, FI_RMA)
CAPS(atomic, FI_ATOMIC)
CAPS(send_only, FI_MSG | FI_SEND)
CAPS(write_only, FI_RMA | FI_WRITE)
CAPS(target_only, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_READ)
CAPS(multi, FI_MSG | FI_MULTI_RECV)
CAPS(source, FI_MSG | FI_SOURCE)
CAPS(directed, FI_TAGGED | FI_DIRECTED_RECV)
CAPS(local, FI_MSG | FI_LOCAL_COMM)
CAPS(remote, FI_MSG | FI_REMOTE_COMM)
CAPS(open_mpi, FI_TAGGED | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM)
HINT(no_mr, hints->domain_attr->mr_mode = 0; hints->caps = FI_TAGGED, info->domain_attr->mr_mode == 0)
HINT(no_local, hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY; hints->caps = FI_RMA,
	!(info->domain_attr->mr_mode & FI_MR_LOCAL))
HINT(rdm, hints->ep_attr->type = FI_EP_RDM, info->ep_attr->type == FI_EP_RDM)
HINT(mode_context, hints->mode = FI_CONTEXT, !(info->mode & ~FI_CONTEXT))
HINT(mode_none, hints->mode = 0, info->mode == 0)
HINT(thread_safe, hints->domain_attr->threading = FI_THREAD_SAFE,
	info->domain_attr->threading == FI_THREAD_SAFE)
HINT(thread_domain, hints->domain_attr->threading = FI_THREAD_DOMAIN,
	info->domain_attr->threading == FI_THREAD_DOMAIN)
HINT(auto_data, hints->domain_attr->data_progress = FI_PROGRESS_AUTO; hints->ep_attr->type = FI_EP_RDM,
	info->domain_attr->data_progress == FI_PROGRESS_AUTO)
HINT(manual, hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL, info->domain_attr->data_progress != FI_PROGRESS_UNSPEC)
HINT(table, hints->domain_attr->av_type = FI_AV_TABLE,
	info->domain_attr->av_type == FI_AV_TABLE || info->domain_attr->av_type == FI_AV_UNSPEC)
HINT(map, hints->domain_attr->av_type = FI_AV_MAP,
	info->domain_attr->av_type == FI_AV_MAP || info->domain_attr->av_type == FI_AV_UNSPEC)
HINT(managed, hints->domain_attr->resource_mgmt = FI_RM_ENABLED, info->domain_attr->resource_mgmt == FI_RM_ENABLED)
HINT(cq_data, hints->domain_attr->cq_data_size = 4, info->domain_attr->cq_data_size >= 4)
HINT(inject, hints->tx_attr->inject_size = 32, info->tx_attr->inject_size >= 32)
HINT(tx_size, hints->tx_attr->size = 16, info->tx_attr->size >= 16)
HINT(rx_size, hints->rx_attr->size = 16, info->rx_attr->size >= 16)
HINT(iov, hints->tx_attr->iov_limit = 2; hints->rx_attr->iov_limit = 2,
	info->tx_attr->iov_limit >= 2 && info->rx_attr->iov_limit >= 2)
HINT(max_size, hints->ep_attr->max_msg_size = 1 << 20, info->ep_attr->max_msg_size >= 1 << 20)
HINT(order, hints->tx_attr->msg_order = FI_ORDER_SAS; hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->ep_attr->type = FI_EP_RDM,
	info->tx_attr->msg_order & FI_ORDER_SAS && info->rx_attr->msg_order & FI_ORDER_SAS)
HINT(completion, hints->tx_attr->op_flags = FI_COMPLETION, info->tx_attr->op_flags & FI_COMPLETION)
HINT(delivery, hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE, info->tx_attr->op_flags & FI_DELIVERY_COMPLETE)
HINT(sas_size, hints->ep_attr->mem_tag_format = 0xffff, info->ep_attr->mem_tag_format != 0)
HINT(key_room, hints->domain_attr->mr_key_size = 8, info->domain_attr->mr_key_size <= 8)
HINT(any_key, hints->domain_attr->mr_key_size = SIZE_MAX, info->domain_attr->mr_key_size <= SIZE_MAX)
HINT(chosen_key, hints->domain_attr->mr_key_size = 4; hints->domain_attr->mr_mode = 0; hints->caps = FI_RMA,
	info->domain_attr->mr_key_size >= 4)
HINT(version_of_protocol, hints->ep_attr->protocol = FI_PROTO_EFA; hints->ep_attr->protocol_version = 4,
	info->ep_attr->protocol_version == 4)
HINT(buffered, hints->rx_attr->total_buffered_recv = 1024, info->rx_attr->total_buffered_recv >= 1024)
HINT(regions, hints->domain_attr->mr_cnt = 100, info->domain_attr->mr_cnt >= 100)
HINT(region_pieces, hints->domain_attr->mr_iov_limit = 1, info->domain_attr->mr_iov_limit >= 1)
HINT(failure_data, hints->domain_attr->max_err_data = 64, info->domain_attr->max_err_data >= 64)
HINT(queues, hints->domain_attr->cq_cnt = 10; hints->domain_attr->cntr_cnt = 10; hints->domain_attr->ep_cnt = 10,
	info->domain_attr->cq_cnt >= 10 && info->domain_attr->cntr_cnt >= 10 && info->domain_attr->ep_cnt >= 10)
HINT(many_pieces, hints->tx_attr->iov_limit = 28; hints->rx_attr->iov_limit = 5,
	info->tx_attr->iov_limit >= 28 && info->rx_attr->iov_limit >= 5)
HINT(rma_pieces, hints->tx_attr->rma_iov_limit = 4; hints->caps = FI_RMA, info->tx_attr->rma_iov_limit >= 4)
/* What no provider has, or ours doesn't offer. */
HINT(dgram, hints->ep_attr->type = FI_EP_DGRAM, info->ep_attr->type == FI_EP_DGRAM)
CAPS(multicast, FI_MSG | FI_MULTICAST)
CAPS(trigger, FI_MSG | FI_TRIGGER)
CAPS(collective, FI_COLLECTIVE)
CAPS(hmem, FI_MSG | FI_HMEM)
CAPS(rma_event, FI_RMA | FI_RMA_EVENT)
CAPS(pmem, FI_RMA | FI_RMA_PMEM)
CAPS(unknown_cap, FI_MSG | 1ULL << 50)
HINT(huge_inject, hints->tx_attr->inject_size = 1 << 30, info->tx_attr->inject_size >= 1 << 30)
HINT(huge_iov, hints->tx_attr->iov_limit = 100000, info->tx_attr->iov_limit >= 100000)
HINT(huge_data, hints->domain_attr->cq_data_size = 9, info->domain_attr->cq_data_size >= 9)
HINT(huge_tx, hints->tx_attr->size = (size_t)1 << 40, info->tx_attr->size >= (size_t)1 << 40)
HINT(scalable, hints->ep_attr->tx_ctx_cnt = 2, info->ep_attr->tx_ctx_cnt >= 2)
HINT(contexts, hints->domain_attr->max_ep_rx_ctx = 2, info->domain_attr->max_ep_rx_ctx >= 2)
HINT(shared_tx, hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT, info->ep_attr->tx_ctx_cnt == FI_SHARED_CONTEXT)
HINT(shared_rx, hints->domain_attr->max_ep_srx_ctx = 1, info->domain_attr->max_ep_srx_ctx >= 1)
HINT(huge_shared, hints->domain_attr->max_ep_stx_ctx = (size_t)1 << 40,
	info->domain_attr->max_ep_stx_ctx >= (size_t)1 << 40)
HINT(other_fabric, hints->fabric_attr->name = strdup("no such fabric"),
	!strcmp(info->fabric_attr->name, "no such fabric"))
HINT(other_domain, hints->domain_attr->name = strdup("no such domain"),
	!strcmp(info->domain_attr->name, "no such domain"))
HINT(other_format, hints->addr_format = FI_SOCKADDR_IB, info->addr_format == FI_SOCKADDR_IB)
HINT(other_protocol, hints->ep_attr->protocol = FI_PROTO_GNI, info->ep_attr->protocol == FI_PROTO_GNI)
HINT(auth, hints->domain_attr->auth_key_size = 5; hints->domain_attr->auth_key = calloc(1, 5),
	info->domain_attr->auth_key_size == 5)

HINT(small_key, hints->domain_attr->mr_key_size = 1, info->domain_attr->mr_key_size <= 1)
HINT(other_version, hints->ep_attr->protocol = FI_PROTO_EFA; hints->ep_attr->protocol_version = 5,
	info->ep_attr->protocol_version == 5)
HINT(huge_version, hints->ep_attr->protocol = FI_PROTO_EFA; hints->ep_attr->protocol_version = 256 + 4,
	info->ep_attr->protocol_version == 256 + 4)
HINT(huge_buffered, hints->rx_attr->total_buffered_recv = (size_t)1 << 50,
	info->rx_attr->total_buffered_recv >= (size_t)1 << 50)
HINT(huge_regions, hints->domain_attr->mr_cnt = (size_t)1 << 40, info->domain_attr->mr_cnt >= (size_t)1 << 40)
HINT(huge_region_pieces, hints->domain_attr->mr_iov_limit = 2, info->domain_attr->mr_iov_limit >= 2)
HINT(huge_failure_data, hints->domain_attr->max_err_data = 1 << 20, info->domain_attr->max_err_data >= 1 << 20)
HINT(huge_queues, hints->domain_attr->cq_cnt = (size_t)1 << 40, info->domain_attr->cq_cnt >= (size_t)1 << 40)
HINT(huge_counters, hints->domain_attr->cntr_cnt = (size_t)1 << 40, info->domain_attr->cntr_cnt >= (size_t)1 << 40)
HINT(huge_endpoints, hints->domain_attr->ep_cnt = (size_t)1 << 40, info->domain_attr->ep_cnt >= (size_t)1 << 40)
HINT(huge_received_iov, hints->rx_attr->iov_limit = 29, info->rx_attr->iov_limit >= 29)
HINT(huge_rma_pieces, hints->tx_attr->rma_iov_limit = 5, info->tx_attr->rma_iov_limit >= 5)
HINT(order_of_sent, hints->tx_attr->comp_order = FI_ORDER_STRICT, info->tx_attr->comp_order == FI_ORDER_STRICT)
HINT(order_of_received, hints->rx_attr->comp_order = FI_ORDER_STRICT, info->rx_attr->comp_order == FI_ORDER_STRICT)
HINT(order_of_data, hints->rx_attr->comp_order = FI_ORDER_DATA, info->rx_attr->comp_order & FI_ORDER_DATA)
HINT(order_of_writes, hints->tx_attr->msg_order = FI_ORDER_RMA_WAW, info->tx_attr->msg_order & FI_ORDER_RMA_WAW)
HINT(order_raw, hints->ep_attr->max_order_raw_size = 8, info->ep_attr->max_order_raw_size >= 8)
HINT(order_war, hints->ep_attr->max_order_war_size = 8, info->ep_attr->max_order_war_size >= 8)
HINT(order_waw, hints->ep_attr->max_order_waw_size = 8, info->ep_attr->max_order_waw_size >= 8)

#define ENTRY(name) { #name, set_##name, met_##name }

static const struct hint must[] = {
	ENTRY(msg), ENTRY(tagged), ENTRY(rma), ENTRY(atomic), ENTRY(send_only), ENTRY(write_only), ENTRY(target_only),
	ENTRY(multi), ENTRY(source), ENTRY(directed), ENTRY(local), ENTRY(remote), ENTRY(open_mpi), ENTRY(no_mr),
	ENTRY(no_local), ENTRY(rdm), ENTRY(mode_context), ENTRY(mode_none), ENTRY(thread_safe), ENTRY(thread_domain),
	ENTRY(auto_data), ENTRY(manual), ENTRY(table), ENTRY(map), ENTRY(managed), ENTRY(cq_data), ENTRY(inject),
	ENTRY(tx_size), ENTRY(rx_size), ENTRY(iov), ENTRY(max_size), ENTRY(order), ENTRY(completion), ENTRY(delivery),
	ENTRY(sas_size), ENTRY(key_room), ENTRY(any_key), ENTRY(chosen_key), ENTRY(version_of_protocol), ENTRY(buffered),
	ENTRY(regions), ENTRY(region_pieces), ENTRY(failure_data), ENTRY(queues), ENTRY(many_pieces), ENTRY(rma_pieces),
	ENTRY(shared_tx), ENTRY(shared_rx),
};

static const struct hint cannot[] = {
	ENTRY(dgram), ENTRY(multicast), ENTRY(trigger), ENTRY(collective), ENTRY(hmem), ENTRY(rma_event), ENTRY(pmem),
	ENTRY(unknown_cap), ENTRY(huge_inject), ENTRY(huge_iov), ENTRY(huge_data), ENTRY(huge_tx),
	ENTRY(scalable), ENTRY(contexts), ENTRY(huge_shared), ENTRY(other_fabric),
	ENTRY(other_domain), ENTRY(other_format), ENTRY(other_protocol), ENTRY(auth), ENTRY(small_key),
	ENTRY(other_version), ENTRY(huge_version), ENTRY(huge_buffered), ENTRY(huge_regions), ENTRY(huge_region_pieces),
	ENTRY(huge_failure_data), ENTRY(huge_queues), ENTRY(huge_counters), ENTRY(huge_endpoints),
	ENTRY(huge_received_iov), ENTRY(huge_rma_pieces), ENTRY(order_of_sent), ENTRY(order_of_received),
	ENTRY(order_of_data), ENTRY(order_of_writes), ENTRY(order_raw), ENTRY(order_war), ENTRY(order_waw),
};

static void each_hint(void)
{
	for (size_t v = 0; v < COUNT(versions); v++)
		for (size_t i = 0; i < COUNT(must) + COUNT(cannot); i++) {
			bool offered = i < COUNT(must);
			const struct hint *hint = offered ? &must[i] : &cannot[i - COUNT(must)];
			struct fi_info *hints = plain_hints(), *info;
			int result;

			hint->set(hints);
			result = ask(versions[v], hints, &info);
			if (result != -FI_ENODATA && result != 0)
				FAIL("hint %s at version %#x: %s", hint->what, versions[v], fi_strerror(-result));
			if (is_ours() && offered && result)
				FAIL("hint %s at version %#x isn't met", hint->what, versions[v]);
			if (is_ours() && !offered && !result)
				FAIL("hint %s at version %#x is met", hint->what, versions[v]);
			for (struct fi_info *entry = info; entry; entry = entry->next)
				if (!hint->met(entry))
					FAIL("hint %s at version %#x: an entry that doesn't meet it: %s", hint->what, versions[v],
						fi_tostr(entry, FI_TYPE_INFO));
			fi_freeinfo(info);
			fi_freeinfo(hints);
		}
}

/* An answer's capabilities are those that were asked, and modes those that the program has. */
static void no_more_than_asked(void)
{
	static const uint64_t primary = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;

	for (size_t i = 0; i < 4; i++) {
		struct fi_info *hints = plain_hints(), *info;
		uint64_t asked = ((uint64_t[]){ FI_MSG, FI_TAGGED, FI_RMA, FI_ATOMIC })[i];

		hints->caps = asked;
		OK(ask(FI_VERSION(1, 17), hints, &info));
		for (struct fi_info *entry = info; entry; entry = entry->next) {
			EQUAL(entry->mode, 0);
			EQUAL(entry->domain_attr->mr_mode & ~hints->domain_attr->mr_mode, 0);
			if (is_ours())
				EQUAL(entry->caps & primary, asked);
		}
		fi_freeinfo(info);
		fi_freeinfo(hints);
	}
}

/* A host that nobody knows ends the search soon. */
static void unknown_host(void)
{
	static const enum fi_ep_type types[] = { FI_EP_RDM, FI_EP_MSG };

	for (size_t i = 0; i < COUNT(types); i++) {
		struct fi_info *hints = plain_hints(), *info = NULL;
		double before = now();

		hints->ep_attr->type = types[i];
		CHECK(fi_getinfo(FI_VERSION(1, 17), "no-such-host.invalid", "12345", 0, hints, &info) < 0);
		CHECK(now() - before < 10);
		/* A host where nobody listens: fails, or answers for the time when somebody does. */
		before = now();
		if (!fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "1", 0, hints, &info))
			fi_freeinfo(info);
		CHECK(now() - before < 10);
		fi_freeinfo(hints);
	}
}

/* A source address of this host; a node that isn't one of its own. */
static void source_node(void)
{
	struct fi_info *hints = plain_hints(), *info = NULL;

	hints->ep_attr->type = FI_EP_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->caps = FI_MSG;
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, hints, &info));
	CHECK(info->src_addr);
	EQUAL(info->src_addrlen, 16);
	CHECK(!info->dest_addr);
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

/* Entries for an open fabric or domain name it. */
static void open_objects(void)
{
	struct fi_info *hints = plain_hints(), *first, *info;
	struct fid_fabric *fabric, *other;
	struct fid_domain *domain;

	if (!is_ours())
		not_offered("entries that name open objects");
	OK(ask(FI_VERSION(1, 17), hints, &first));
	CHECK(!first->fabric_attr->fabric && !first->domain_attr->domain);
	OK(fi_fabric(first->fabric_attr, &fabric, NULL));
	OK(fi_fabric(first->fabric_attr, &other, NULL));
	OK(fi_domain(fabric, first, &domain, NULL));
	/* The fabric, both, the domain. */
	for (int i = 0; i < 3; i++) {
		hints->fabric_attr->fabric = i < 2 ? fabric : NULL;
		hints->domain_attr->domain = i ? domain : NULL;
		OK(ask(FI_VERSION(1, 17), hints, &info));
		for (struct fi_info *entry = info; entry; entry = entry->next) {
			CHECK(entry->fabric_attr->fabric == fabric);
			CHECK(entry->domain_attr->domain == (i ? domain : NULL));
		}
		fi_freeinfo(info);
	}
	hints->fabric_attr->fabric = other;
	FAILS(ask(FI_VERSION(1, 17), hints, &info), FI_ENODATA);
	OK(fi_close(&domain->fid));
	OK(fi_close(&other->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(first);
	fi_freeinfo(hints);
}

static bool has_ipv6(void)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	bool is_bound = fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof(address));

	if (fd >= 0)
		OK(close(fd));
	return is_bound;
}

/* The addresses of an entry are of this family: as long as it says, and no shorter. */
static void check_family(const struct fi_info *info, int family, bool has_destination)
{
	size_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

	EQUAL(info->addr_format, family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6);
	EQUAL(info->src_addrlen, length);
	EQUAL(((struct sockaddr *)info->src_addr)->sa_family, family);
	EQUAL(!!info->dest_addr, has_destination);
	if (has_destination) {
		EQUAL(info->dest_addrlen, length);
		EQUAL(((struct sockaddr *)info->dest_addr)->sa_family, family);
	}
}

/* A server by a service, by its node or by nothing, and clients by service or address: all in the family of the hints. */
static void families(void)
{
	static const int of[] = { AF_INET, AF_INET6 };

	if (!is_ours())
		not_offered("addresses of the family that was asked for");
	for (size_t i = 0; i < 3 * COUNT(of); i++) {
		int family = of[i / 3];
		struct fi_info *hints = plain_hints(), *info;
		const char *nodes[] = { NULL, family == AF_INET ? "127.0.0.1" : "::1", NULL };
		struct sockaddr_in6 name;
		size_t length = sizeof(name);
		struct fid_fabric *fabric;
		struct fi_eq_attr attr = { 0 };
		struct fid_eq *events;
		struct fid_pep *pep;
		char port[8];

		if (family == AF_INET6 && !has_ipv6())
			return;
		hints->ep_attr->type = FI_EP_MSG;
		hints->addr_format = family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
		OK(fi_getinfo(FI_VERSION(1, 17), nodes[i % 3], i % 3 < 2 ? "0" : NULL, i % 3 < 2 ? FI_SOURCE : 0, hints, &info));
		check_family(info, family, false);
		OK(fi_fabric(info->fabric_attr, &fabric, NULL));
		OK(fi_eq_open(fabric, &attr, &events, NULL));
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &events->fid, 0));
		OK(fi_listen(pep));
		OK(fi_getname(&pep->fid, &name, &length));
		EQUAL(name.sin6_family, family);
		EQUAL(length, info->src_addrlen);
		fi_freeinfo(info);

		/* The port is at the same place in both. */
		snprintf(port, sizeof(port), "%u", ntohs(name.sin6_port));
		OK(fi_getinfo(FI_VERSION(1, 17), NULL, port, 0, hints, &info));
		check_family(info, family, true);
		fi_freeinfo(info);
		hints->dest_addr = malloc(length);
		memcpy(hints->dest_addr, &name, length);
		hints->dest_addrlen = length;
		OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
		check_family(info, family, true);
		fi_freeinfo(info);
		fi_freeinfo(hints);
		OK(fi_close(&pep->fid));
		OK(fi_close(&events->fid));
		OK(fi_close(&fabric->fid));
	}
}

static uint16_t port_for(const char *service, struct fi_info *hints)
{
	struct sockaddr_in *address;
	struct fi_info *info;
	uint16_t port;

	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", service, 0, hints, &info));
	EQUAL(info->dest_addrlen, sizeof(*address));
	address = info->dest_addr;
	port = ntohs(address->sin_port);
	fi_freeinfo(info);
	return port;
}

/* A service is a number, or a name that the system knows. */
static void services(void)
{
	static const char *const names[] = { "ssh", "http", "domain" };
	struct fi_info *hints = plain_hints(), *info;
	size_t known = 0;

	hints->ep_attr->type = FI_EP_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->caps = FI_MSG;
	EQUAL(port_for("22", hints), 22);
	for (size_t i = 0; i < COUNT(names); i++) {
		const struct servent *service = getservbyname(names[i], "tcp");

		if (!service)
			continue;
		EQUAL(port_for(names[i], hints), ntohs((uint16_t)service->s_port));
		known++;
	}
	if (is_ours()) {
		FAILS(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "no-such-service", 0, hints, &info), FI_ENODATA);
		FAILS(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "65536", 0, hints, &info), FI_ENODATA);
		FAILS(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "", 0, hints, &info), FI_ENODATA);
	}
	fi_freeinfo(hints);
	if (!known)
		not_offered("a name of a service (the package netbase has /etc/services)");
}

/* Flags and versions that there aren't. */
static void bad_arguments(void)
{
	struct fi_info *hints = plain_hints(), *info = NULL;

	CHECK(fi_getinfo(FI_VERSION(9, 0), NULL, NULL, 0, hints, &info) < 0);
	/* FI_SOURCE says that node or service is there. */
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, FI_SOURCE, hints, &info) <= 0);
	fi_freeinfo(info);
	info = NULL;
	CHECK(fi_getinfo(FI_VERSION(1, 17), "not a number", NULL, FI_NUMERICHOST, hints, &info) < 0);
	free(hints->fabric_attr->prov_name);
	hints->fabric_attr->prov_name = strdup("no-such-provider");
	FAILS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), FI_ENODATA);
	fi_freeinfo(hints);
}

const struct program discovery[] = {
	{ "discovery-no-hints", no_hints },
	{ "discovery-own-answer", own_answer },
	{ "discovery-answers-open", answers_open },
	{ "discovery-each-hint", each_hint },
	{ "discovery-no-more-than-asked", no_more_than_asked },
	{ "discovery-unknown-host", unknown_host },
	{ "discovery-source-node", source_node },
	{ "discovery-open-objects", open_objects },
	{ "discovery-services", services },
	{ "discovery-families", families },
	{ "discovery-bad-arguments", bad_arguments },
	{ NULL, NULL },
};

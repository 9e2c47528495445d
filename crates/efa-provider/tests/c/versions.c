/* Callers of older and newer releases, whose structures have other lengths: none is read or written beyond its end. */
#include "program.h"

#include <rdma/fi_collective.h>
#include <sys/mman.h>

/* The entry of a failure since 1.20. */
struct newer_error {
	struct fi_cq_err_entry entry;
	fi_addr_t source;
};

static size_t page;
static char *last_page;

/* Room for so many bytes, behind which nothing may be touched. */
static void *at_end(size_t length)
{
	if (!last_page) {
		page = (size_t)sysconf(_SC_PAGESIZE);
		last_page = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(last_page != MAP_FAILED);
		OK(mprotect(last_page + page, page, PROT_NONE));
	}
	memset(last_page, 0xee, page);
	return last_page + page - length;
}

/* A failure, and a registration, for a caller of a version. */
static void calls_of(uint32_t version)
{
	const struct fi_provider *provider = library();
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
	struct fi_info *hints = hints_of(&options), *info = NULL;
	struct fid_fabric *fabric;
	struct world world;
	struct side *at = &world.side[1];
	bool newer = version >= FI_VERSION(1, 20);
	size_t length = newer ? sizeof(struct newer_error) : sizeof(struct fi_cq_err_entry);
	struct newer_error *error;
	struct fi_cq_tagged_entry entry;
	char here[8], memory[64];
	struct iovec piece = { memory, sizeof(memory) };
	struct fi_mr_attr *attr;
	/* It ends before `iface` up to 1.8. */
	size_t known = version >= FI_VERSION(1, 9) ? sizeof(*attr) : offsetof(struct fi_mr_attr, iface);
	struct fid_mr *mr;

	OK(provider->getinfo(version, NULL, NULL, 0, hints, &info));
	EQUAL(info->fabric_attr->api_version, version);
	OK(provider->fabric(info->fabric_attr, &fabric, NULL));
	EQUAL(fabric->api_version, version);
	open_world_at(&world, &options, fi_dupinfo(info), fabric);
	fi_freeinfo(info);
	fi_freeinfo(hints);
	POST(&world, fi_recv(at->ep, here, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(5)));
	OK(fi_cancel(&at->ep->fid, CONTEXT(5)));
	FAILS(fi_cq_read(at->rx, &entry, 1), FI_EAVAIL);
	error = at_end(length);
	memset(error, 0, length);
	if (newer)
		error->source = FI_ADDR_NOTAVAIL;
	EQUAL(fi_cq_readerr(at->rx, &error->entry, 0), 1);
	EQUAL(error->entry.err, FI_ECANCELED);
	EQUAL((uintptr_t)error->entry.op_context, (uintptr_t)CONTEXT(5));
	if (newer)
		EQUAL(error->source, FI_ADDR_NOTAVAIL);
	attr = at_end(known);
	memset(attr, 0, known);
	attr->mr_iov = &piece;
	attr->iov_count = 1;
	attr->access = FI_REMOTE_READ;
	attr->requested_key = 5;
	OK(fi_mr_regattr(world.domain, attr, 0, &mr));
	OK(fi_close(&mr->fid));
	close_world(&world);
}

static void lengths(void)
{
	const uint32_t versions[] = {
		FI_VERSION(1, 5), FI_VERSION(1, 8), FI_VERSION(1, 9), FI_VERSION(1, 17), FI_VERSION(1, 20), FI_VERSION(2, 0),
		FI_VERSION(2, 6),
	};

	for (size_t i = 0; i < COUNT(versions); i++)
		calls_of(versions[i]);
}

/* Capabilities that changed their meaning with 2.0, and that no version has from us. */
static void bits(void)
{
	const uint32_t versions[] = { FI_VERSION(1, 5), FI_VERSION(1, 17), FI_VERSION(2, 0), FI_VERSION(2, 6) };

	/* They say more about others. */
	const uint64_t narrowing = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

	for (size_t i = 0; i < COUNT(versions); i++)
		for (int bit = 0; bit < 64; bit++) {
			struct options options = { .caps = FI_MSG | 1ULL << bit };
			struct fi_info *hints = hints_of(&options), *info = NULL;
			int result = library()->getinfo(versions[i], NULL, NULL, 0, hints, &info);

			if (result)
				FAILS(result, FI_ENODATA);
			/* What is asked is met, or nothing is found. */
			for (struct fi_info *entry = info; entry; entry = entry->next) {
				EQUAL(options.caps & ~entry->caps & ~narrowing, 0);
				EQUAL(entry->fabric_attr->api_version, versions[i]);
			}
			fi_freeinfo(info);
			fi_freeinfo(hints);
		}
}

/* A program of 1.4 says by words how it registers memory, and need not say it. */
static void before_mode_bits(void)
{
	const int modes[] = { FI_MR_UNSPEC, FI_MR_BASIC, FI_MR_SCALABLE };

	for (size_t i = 0; i < COUNT(modes); i++) {
		struct options options = { .caps = FI_MSG | FI_RMA };
		struct fi_info *hints = hints_of(&options), *info = NULL;

		hints->domain_attr->mr_mode = modes[i];
		OK(library()->getinfo(FI_VERSION(1, 4), NULL, NULL, 0, hints, &info));
		EQUAL(info->domain_attr->mr_mode, modes[i] ? modes[i] : FI_MR_BASIC);
		fi_freeinfo(info);
		fi_freeinfo(hints);
	}
}

/* An object's table is as long as this release's headers say, or longer: that of a newer one. */
#define TABLE(object, table, type) \
	if ((object)->table->size < sizeof(struct type)) \
		FAIL("%s->%s has %zu bytes, expected %zu", #object, #table, (object)->table->size, sizeof(struct type))

/* Every table says its size, by which libfabric and programs know which functions it has. */
static void tables(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC, .counters = true, .wait = FI_WAIT_UNSPEC };
	struct world world;
	struct side *side = &world.side[0];
	struct fi_eq_attr of_events = { 0 };
	struct fi_wait_attr of_wait = { .wait_obj = FI_WAIT_FD };
	struct fi_poll_attr of_poll = { 0 };
	struct fi_info *hints, *info;
	struct fid_eq *eq;
	struct fid_wait *wait;
	struct fid_poll *poll;
	struct fid_pep *pep;
	struct region region;
	static char memory[64];

	open_world(&world, &options);
	region = register_of(&world, side, memory, sizeof(memory), FI_SEND);
	OK(fi_eq_open(world.fabric, &of_events, &eq, NULL));
	OK(fi_wait_open(world.fabric, &of_wait, &wait));
	OK(fi_poll_open(world.domain, &of_poll, &poll));
	hints = hints_of(&(struct options){ .caps = FI_MSG });
	hints->ep_attr->type = FI_EP_MSG;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	OK(fi_passive_ep(world.fabric, info, &pep, NULL));
	TABLE(&world.fabric->fid, ops, fi_ops);
	TABLE(world.fabric, ops, fi_ops_fabric);
	TABLE(&world.domain->fid, ops, fi_ops);
	TABLE(world.domain, ops, fi_ops_domain);
	TABLE(world.domain, mr, fi_ops_mr);
	TABLE(&side->ep->fid, ops, fi_ops);
	TABLE(side->ep, ops, fi_ops_ep);
	TABLE(side->ep, cm, fi_ops_cm);
	TABLE(side->ep, msg, fi_ops_msg);
	TABLE(side->ep, rma, fi_ops_rma);
	TABLE(side->ep, tagged, fi_ops_tagged);
	TABLE(side->ep, atomic, fi_ops_atomic);
	TABLE(side->ep, collective, fi_ops_collective);
	TABLE(&pep->fid, ops, fi_ops);
	TABLE(pep, ops, fi_ops_ep);
	TABLE(pep, cm, fi_ops_cm);
	TABLE(&side->rx->fid, ops, fi_ops);
	TABLE(side->rx, ops, fi_ops_cq);
	TABLE(&side->sent->fid, ops, fi_ops);
	TABLE(side->sent, ops, fi_ops_cntr);
	TABLE(&side->av->fid, ops, fi_ops);
	TABLE(side->av, ops, fi_ops_av);
	TABLE(&eq->fid, ops, fi_ops);
	TABLE(eq, ops, fi_ops_eq);
	TABLE(&wait->fid, ops, fi_ops);
	TABLE(wait, ops, fi_ops_wait);
	TABLE(&poll->fid, ops, fi_ops);
	TABLE(poll, ops, fi_ops_poll);
	TABLE(&region.mr->fid, ops, fi_ops);
	/* These are the same in every release up to 2.6. */
	if (is_ours()) {
		EQUAL(side->ep->msg->size, sizeof(struct fi_ops_msg));
		EQUAL(side->ep->tagged->size, sizeof(struct fi_ops_tagged));
		EQUAL(side->ep->rma->size, sizeof(struct fi_ops_rma));
		EQUAL(side->ep->atomic->size, sizeof(struct fi_ops_atomic));
		EQUAL(side->rx->ops->size, sizeof(struct fi_ops_cq));
		EQUAL(eq->ops->size, sizeof(struct fi_ops_eq));
	}
	OK(fi_close(&pep->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
	OK(fi_close(&poll->fid));
	OK(fi_close(&wait->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

const struct program versions[] = {
	{ "versions-tables", tables },
	{ "versions-lengths", lengths },
	{ "versions-bits", bits },
	{ "versions-before-mode-bits", before_mode_bits },
	{ NULL, NULL },
};

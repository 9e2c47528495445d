/* Memory regions: keys, access, descriptors, and what ends with them. */
#include "program.h"

#include <sys/uio.h>

static const uint64_t remote = FI_REMOTE_READ | FI_REMOTE_WRITE;

/* The other registration calls give the same: a key and a descriptor. */
static void forms(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };
	struct world world;
	static char memory[3][4096];
	struct iovec piece = { memory[1], sizeof(memory[1]) };
	struct fi_mr_attr attr = {
		.mr_iov = &piece, .iov_count = 1, .access = remote, .requested_key = 77, .context = CONTEXT(3),
	};
	struct fid_mr *mr[3];

	open_world(&world, &options);
	OK(fi_mr_reg(world.domain, memory[0], sizeof(memory[0]), remote, 0, 76, 0, &mr[0], CONTEXT(1)));
	OK(fi_mr_regattr(world.domain, &attr, 0, &mr[1]));
	piece.iov_base = memory[2];
	OK(fi_mr_regv(world.domain, &piece, 1, remote, 0, 78, 0, &mr[2], CONTEXT(2)));
	EQUAL((uintptr_t)mr[0]->fid.context, (uintptr_t)CONTEXT(1));
	EQUAL((uintptr_t)mr[1]->fid.context, (uintptr_t)CONTEXT(3));
	EQUAL((uintptr_t)mr[2]->fid.context, (uintptr_t)CONTEXT(2));
	for (int i = 0; i < 3; i++) {
		CHECK(fi_mr_key(mr[i]) != FI_KEY_NOTAVAIL);
		for (int k = 0; k < i; k++)
			CHECK(fi_mr_key(mr[i]) != fi_mr_key(mr[k]));
		if (!(world.info->domain_attr->mr_mode & FI_MR_PROV_KEY))
			EQUAL(fi_mr_key(mr[i]), 76 + i);
	}
	for (int i = 0; i < 3; i++)
		OK(fi_close(&mr[i]->fid));
	close_world(&world);
}

/* Keys that the program chooses: each at most once at a time. */
static void chosen_keys(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };
	struct fi_info *hints = hints_of(&options), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_mr *one, *two;
	static char memory[4096];

	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
	if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == -FI_ENODATA)
		not_offered("keys that the program chooses");
	EQUAL(info->domain_attr->mr_mode & FI_MR_PROV_KEY, 0);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_mr_reg(domain, memory, sizeof(memory), remote, 0, 5, 0, &one, NULL));
	EQUAL(fi_mr_key(one), 5);
	FAILS(fi_mr_reg(domain, memory, sizeof(memory), remote, 0, 5, 0, &two, NULL), FI_ENOKEY);
	OK(fi_close(&one->fid));
	OK(fi_mr_reg(domain, memory, sizeof(memory), remote, 0, 5, 0, &two, NULL));
	OK(fi_close(&two->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

/* A domain that was opened for messages alone has keys of the provider: no endpoint that expects its own. */
static void keys_of_another_entry(void)
{
	struct options options = { .caps = FI_MSG };
	struct fi_info *hints = hints_of(&options), *plain, *keyed, *found;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;

	hints->domain_attr->mr_mode = 0;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &plain));
	hints->caps = FI_MSG | FI_RMA;
	if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &keyed) == -FI_ENODATA)
		not_offered("keys that the program chooses");
	OK(fi_fabric(plain->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, plain, &domain, NULL));
	if (is_ours())
		FAILS(fi_endpoint(domain, keyed, &ep, NULL), FI_EINVAL);
	/* Who asks for entries of the open domain isn't offered it. */
	hints->domain_attr->domain = domain;
	if (is_ours())
		FAILS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), FI_ENODATA);
	hints->caps = FI_MSG;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
	OK(fi_endpoint(domain, found, &ep, NULL));
	OK(fi_close(&ep->fid));
	fi_freeinfo(found);
	OK(fi_endpoint(domain, plain, &ep, NULL));
	OK(fi_close(&ep->fid));
	OK(fi_close(&domain->fid));
	OK(fi_domain(fabric, keyed, &domain, NULL));
	hints->domain_attr->domain = domain;
	for (int i = 0; i < 2; i++) {
		hints->caps = i ? FI_MSG : FI_MSG | FI_RMA;
		OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
		OK(fi_endpoint(domain, found, &ep, NULL));
		OK(fi_close(&ep->fid));
		fi_freeinfo(found);
	}
	OK(fi_endpoint(domain, plain, &ep, NULL));
	OK(fi_close(&ep->fid));
	OK(fi_endpoint(domain, keyed, &ep, NULL));
	OK(fi_close(&ep->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(plain);
	fi_freeinfo(keyed);
	fi_freeinfo(hints);
}

/* Messages from and to registered memory, named by its descriptor. */
static void descriptors(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char there[200000], here[200000];
	struct region source, target;

	open_world(&world, &options);
	source = register_of(&world, from, there, sizeof(there), FI_SEND);
	target = register_of(&world, at, here, sizeof(here), FI_RECV);
	for (size_t length = 20; length <= sizeof(there); length *= 100) {
		/* From amidst the region. */
		size_t offset = length == 20 ? 1000 : 0;

		fill(there + offset, length, 4);
		memset(here, 0, sizeof(here));
		POST(&world, fi_trecv(at->ep, here + offset, length, target.desc, FI_ADDR_UNSPEC, 1, 0, CONTEXT(0)));
		POST(&world, fi_tsend(from->ep, there + offset, length, source.desc, from->to[1], 1, CONTEXT(1)));
		DONE(&world, at->rx, CONTEXT(0), FI_RECV | FI_TAGGED);
		DONE(&world, from->tx, CONTEXT(1), FI_SEND | FI_TAGGED);
		FILLED(here + offset, length, 4);
	}
	OK(fi_close(&source.mr->fid));
	OK(fi_close(&target.mr->fid));
	close_world(&world);
}

/* Memory needs no registration, so short messages go without a look at their descriptors, which may be anything. */
static void undefined_descriptors(void)
{
	struct options options = { 0 };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char memory[64], there[8], here[8];
	struct region region;

	if (!is_ours())
		not_offered("operations with undefined descriptors");
	open_world(&world, &options);
	region = register_of(&world, from, memory, sizeof(memory), FI_SEND | FI_RECV);
	void *const anything[] = { region.desc, &region, (void *)1, region.desc };

	for (int i = 0; i < 4; i++) {
		/* In the end of a region that was closed. */
		if (i == 3)
			OK(fi_close(&region.mr->fid));
		fill(there, sizeof(there), (unsigned)i);
		POST(&world, fi_recv(at->ep, here, sizeof(here), anything[i], FI_ADDR_UNSPEC, CONTEXT(0)));
		POST(&world, fi_send(from->ep, there, sizeof(there), anything[i], from->to[1], CONTEXT(1)));
		DONE(&world, at->rx, CONTEXT(0), FI_RECV | FI_MSG);
		DONE(&world, from->tx, CONTEXT(1), FI_SEND | FI_MSG);
		FILLED(here, sizeof(here), (unsigned)i);
	}
	close_world(&world);
}

/* Keys in the raw form, as programs exchange them without a look at how long those of a provider are. */
static void raw_keys(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char memory[64];
	uint8_t raw[64];
	size_t size = 0;
	uint64_t base = 1, key = FI_KEY_NOTAVAIL;
	struct region region;
	char local[64];

	if (!is_ours())
		not_offered("raw keys");
	open_world(&world, &options);
	region = register_of(&world, at, memory, sizeof(memory), remote);
	fill(memory, sizeof(memory), 3);
	FAILS(fi_mr_raw_attr(region.mr, NULL, NULL, &size, 0), FI_ETOOSMALL);
	CHECK(size > 0 && size <= sizeof(raw));
	FAILS(fi_mr_raw_attr(region.mr, NULL, raw, &size, 0), FI_EINVAL);
	FAILS(fi_mr_raw_attr(region.mr, &base, raw, &size, 1), FI_EBADFLAGS);
	OK(fi_mr_raw_attr(region.mr, &base, raw, &size, 0));
	EQUAL(base, region.address);
	FAILS(fi_mr_map_raw(world.domain, base, raw, size - 1, &key, 0), FI_EINVAL);
	OK(fi_mr_map_raw(world.domain, base, raw, size, &key, 0));
	EQUAL(key, region.key);
	POST(&world, fi_read(from->ep, local, sizeof(local), NULL, from->to[1], base, key, CONTEXT(0)));
	DONE(&world, from->tx, CONTEXT(0), FI_RMA | FI_READ);
	FILLED(local, sizeof(local), 3);
	OK(fi_mr_unmap_key(world.domain, key));
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* Nothing is sent, received, written or read with a descriptor, wherever its address is. */
static void nothing_described(void)
{
	struct options options = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char there[64], here[64];
	char elsewhere[8], received[8];
	void *const addresses[] = { NULL, elsewhere, there + sizeof(there) };
	struct region source, target;

	open_world(&world, &options);
	source = register_of(&world, from, there, sizeof(there), FI_SEND | FI_RECV | FI_READ | FI_WRITE);
	target = register_of(&world, at, here, sizeof(here), remote);
	for (size_t i = 0; i < COUNT(addresses); i++) {
		void *address = addresses[i];
		struct iovec pieces[] = { { there, 4 }, { address, 0 }, { there + 4, 4 } };
		void *descs[] = { source.desc, source.desc, source.desc };

		POST(&world, fi_trecv(at->ep, address, 0, target.desc, FI_ADDR_UNSPEC, 1, 0, CONTEXT(0)));
		POST(&world, fi_tsend(from->ep, address, 0, source.desc, from->to[1], 1, CONTEXT(1)));
		DONE(&world, at->rx, CONTEXT(0), FI_RECV | FI_TAGGED);
		DONE(&world, from->tx, CONTEXT(1), FI_SEND | FI_TAGGED);
		POST(&world, fi_recv(at->ep, address, 0, target.desc, FI_ADDR_UNSPEC, CONTEXT(2)));
		POST(&world, fi_send(from->ep, address, 0, source.desc, from->to[1], CONTEXT(3)));
		DONE(&world, at->rx, CONTEXT(2), FI_RECV | FI_MSG);
		DONE(&world, from->tx, CONTEXT(3), FI_SEND | FI_MSG);
		POST(&world, fi_write(from->ep, address, 0, source.desc, from->to[1], target.address, target.key, CONTEXT(4)));
		DONE(&world, from->tx, CONTEXT(4), FI_RMA | FI_WRITE);
		POST(&world, fi_read(from->ep, address, 0, source.desc, from->to[1], target.address, target.key, CONTEXT(5)));
		DONE(&world, from->tx, CONTEXT(5), FI_RMA | FI_READ);
		/* A piece of nothing between others. */
		fill(there, 8, (unsigned)i);
		POST(&world, fi_recv(at->ep, received, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(6)));
		POST(&world, fi_sendv(from->ep, pieces, descs, COUNT(pieces), from->to[1], CONTEXT(7)));
		DONE(&world, at->rx, CONTEXT(6), FI_RECV | FI_MSG);
		DONE(&world, from->tx, CONTEXT(7), FI_SEND | FI_MSG);
		FILLED(received, 8, (unsigned)i);
	}
	OK(fi_close(&source.mr->fid));
	OK(fi_close(&target.mr->fid));
	close_world(&world);
}

/* What is registered for sending may be read by peers on an interface, and nowhere else. Memory that is registered for
 * something else, or not at all, may not be read, and is sent all the same. */
static void sent_from(void)
{
	enum { LENGTH = 2000000 };
	static const uint64_t accesses[] = { FI_SEND, FI_WRITE, 0 };
	static char there[LENGTH], here[LENGTH];
	const char *device = getenv("FI_EFARS_DEVICE");
	bool on_interface = device && !strcmp(device, "verbs");

	if (!is_ours())
		not_offered("access by what the device is");
	for (unsigned i = 0; i < COUNT(accesses); i++) {
		struct options options = { .caps = FI_MSG | FI_RMA };
		struct world world;
		struct side *from = &world.side[0], *at = &world.side[1];
		struct region region = { 0 };
		char local[64];

		open_world(&world, &options);
		if (accesses[i])
			region = register_of(&world, from, there, LENGTH, accesses[i]);
		fill(there, LENGTH, i);
		POST(&world, fi_recv(at->ep, here, LENGTH, NULL, FI_ADDR_UNSPEC, CONTEXT(0)));
		POST(&world, fi_send(from->ep, there, LENGTH, region.desc, from->to[1], CONTEXT(1)));
		DONE(&world, at->rx, CONTEXT(0), FI_RECV | FI_MSG);
		DONE(&world, from->tx, CONTEXT(1), FI_SEND | FI_MSG);
		FILLED(here, LENGTH, i);
		if (accesses[i]) {
			POST(&world, fi_read(at->ep, local, 64, NULL, at->to[0], region.address, region.key, CONTEXT(2)));
			if (on_interface && accesses[i] == FI_SEND) {
				DONE(&world, at->tx, CONTEXT(2), FI_RMA | FI_READ);
				FILLED(local, 64, i);
			} else {
				CHECK(TAKE_ERROR(&world, at->tx).err);
			}
			OK(fi_close(&region.mr->fid));
		}
		close_world(&world);
	}
}

/* A peer can't write what may only be read, nor beside the region, nor with a key that has ended. */
static void refused_access(void)
{
	static const struct { const char *what; uint64_t access; long offset; bool closed, write; } cases[] = {
		{ "write to what may be read", FI_REMOTE_READ, 0, false, true },
		{ "read of what may be written", FI_REMOTE_WRITE, 0, false, false },
		{ "write beyond the end", FI_REMOTE_READ | FI_REMOTE_WRITE, 4090, false, true },
		{ "read beyond the end", FI_REMOTE_READ | FI_REMOTE_WRITE, 4090, false, false },
		{ "write before the start", FI_REMOTE_READ | FI_REMOTE_WRITE, -8, false, true },
		{ "write with an ended key", FI_REMOTE_READ | FI_REMOTE_WRITE, 0, true, true },
		{ "read with an ended key", FI_REMOTE_READ | FI_REMOTE_WRITE, 0, true, false },
	};
	static char memory[8192 + 4096];
	char local[64];

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct options options = { .caps = FI_MSG | FI_RMA };
		struct world world;
		struct side *from = &world.side[0], *at = &world.side[1];
		struct region region;
		struct fi_cq_err_entry error;
		uint64_t address;

		open_world(&world, &options);
		memset(memory, 0xee, sizeof(memory));
		memset(local, 1, sizeof(local));
		region = register_of(&world, at, memory + 4096, 4096, cases[i].access);
		address = region.address + (uint64_t)cases[i].offset;
		if (cases[i].closed)
			OK(fi_close(&region.mr->fid));
		if (cases[i].write)
			POST(&world, fi_write(from->ep, local, 64, NULL, from->to[1], address, region.key, CONTEXT(1)));
		else
			POST(&world, fi_read(from->ep, local, 64, NULL, from->to[1], address, region.key, CONTEXT(1)));
		error = TAKE_ERROR(&world, from->tx);
		if ((uintptr_t)error.op_context != (uintptr_t)CONTEXT(1) || !error.err)
			FAIL("%s: context %p, error %d", cases[i].what, error.op_context, error.err);
		KIND(error.flags, FI_RMA | (uint64_t)(cases[i].write ? FI_WRITE : FI_READ));
		for (size_t k = 0; k < sizeof(memory); k++)
			EQUAL((unsigned char)memory[k], 0xee);
		for (size_t k = 0; k < sizeof(local); k++)
			EQUAL(local[k], 1);
		if (!cases[i].closed)
			OK(fi_close(&region.mr->fid));
		close_world(&world);
	}
}

/* A registration of another place under a new key doesn't disturb the first. */
static void many(void)
{
	enum { REGIONS = 200 };
	struct options options = { .caps = FI_MSG | FI_RMA };
	struct world world;
	struct side *from = &world.side[0], *at = &world.side[1];
	static char memory[REGIONS][64];
	struct region region[REGIONS];
	char local[64];

	open_world(&world, &options);
	for (int i = 0; i < REGIONS; i++) {
		region[i] = register_of(&world, at, memory[i], 64, remote);
		fill(memory[i], 64, (unsigned)i);
	}
	for (int i = 0; i < REGIONS; i += 2)
		OK(fi_close(&region[i].mr->fid));
	for (int i = 1; i < REGIONS; i += 2) {
		POST(&world, fi_read(from->ep, local, 64, NULL, from->to[1], region[i].address, region[i].key, CONTEXT(i % 8)));
		DONE(&world, from->tx, CONTEXT(i % 8), FI_RMA | FI_READ);
		FILLED(local, 64, (unsigned)i);
		OK(fi_close(&region[i].mr->fid));
	}
	close_world(&world);
}

const struct program regions[] = {
	{ "regions-forms", forms },
	{ "regions-chosen-keys", chosen_keys },
	{ "regions-keys-of-another-entry", keys_of_another_entry },
	{ "regions-descriptors", descriptors },
	{ "regions-undefined-descriptors", undefined_descriptors },
	{ "regions-raw-keys", raw_keys },
	{ "regions-nothing-described", nothing_described },
	{ "regions-sent-from", sent_from },
	{ "regions-refused-access", refused_access },
	{ "regions-many", many },
	{ NULL, NULL },
};

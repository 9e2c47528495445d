#include "program.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <time.h>

struct fi_context2 contexts[64];

void fail(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	fflush(NULL);
	_exit(1);
}

void not_offered(const char *what)
{
	fprintf(stderr, "%s doesn't offer: %s\n", provider(), what);
	fflush(NULL);
	_exit(NOT_OFFERED);
}

void compare_numbers(const char *file, int line, const char *what, long long actual, long long expected)
{
	if (actual != expected)
		fail(file, line, "%s is %lld (%#llx), expected %lld (%#llx)", what, actual, actual, expected, expected);
}

void compare_result(const char *file, int line, const char *what, long long actual, long long expected)
{
	if (actual != expected)
		fail(file, line, "%s gives %lld (%s), expected %lld (%s)", what, actual,
			actual > 0 ? "a count" : fi_strerror((int)-actual), expected, fi_strerror((int)-expected));
}

void compare_text(const char *file, int line, const char *what, const char *actual, const char *expected)
{
	if (!actual || strcmp(actual, expected))
		fail(file, line, "%s is \"%s\", expected \"%s\"", what, actual ? actual : "(null)", expected);
}

void compare_bytes(const char *file, int line, const char *what, const void *actual, const void *expected, size_t length)
{
	const unsigned char *a = actual, *b = expected;

	for (size_t i = 0; i < length; i++)
		if (a[i] != b[i])
			fail(file, line, "%s: byte %zu of %zu is %u, expected %u", what, i, length, a[i], b[i]);
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

const char *provider(void)
{
	const char *name = getenv("PROVIDER");

	return name ? name : "efars";
}

bool is_ours(void)
{
	return !strcmp(provider(), "efars") || !strcmp(provider(), "efa");
}

const struct fi_provider *library(void)
{
	static const struct fi_provider *found;
	char path[4096];

	if (!is_ours() || !getenv("FI_PROVIDER_PATH"))
		not_offered("a library of its own");
	if (!found) {
		void *loaded;
		struct fi_provider *(*begin)(void);

		snprintf(path, sizeof(path), "%s/libefars-fi.so", getenv("FI_PROVIDER_PATH"));
		loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		CHECK(loaded);
		*(void **)&begin = dlsym(loaded, "fi_prov_ini");
		CHECK(begin);
		found = begin();
		CHECK(found);
	}
	return found;
}

struct fi_info *hints_of(const struct options *options)
{
	struct fi_info *hints = fi_allocinfo();

	CHECK(hints);
	hints->fabric_attr->prov_name = strdup(provider());
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = options->caps ? options->caps : FI_MSG | FI_TAGGED;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	hints->domain_attr->av_type = options->av;
	hints->domain_attr->data_progress = options->progress;
	hints->tx_attr->op_flags = options->tx_flags;
	hints->rx_attr->op_flags = options->rx_flags;
	hints->tx_attr->iov_limit = options->pieces;
	hints->rx_attr->iov_limit = options->pieces;
	if (options->shared_tx)
		hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
	if (options->shared_rx)
		hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	hints->mode = options->mode;
	return hints;
}

struct fi_info *info_of(const struct options *options)
{
	struct fi_info *hints = hints_of(options), *info = NULL;
	int result = fi_getinfo(options->version ? options->version : FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);

	fi_freeinfo(hints);
	if (result == -FI_ENODATA)
		not_offered("what the hints ask");
	OK(result);
	return info;
}

void open_side(struct world *world, struct side *side)
{
	const struct options *options = &world->options;
	struct fi_cq_attr cq = {
		.size = options->cq_size ? options->cq_size : 256,
		.format = options->format ? options->format : FI_CQ_FORMAT_TAGGED,
		.wait_obj = options->wait,
		.wait_cond = options->condition,
		.wait_set = options->set,
	};
	struct fi_cntr_attr counter = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = options->wait };
	struct fi_av_attr av = { .type = options->av ? options->av : FI_AV_TABLE, .count = 16 };
	uint64_t both = FI_TRANSMIT | FI_RECV;

	OK(fi_endpoint(world->domain, world->info, &side->ep, side));
	OK(fi_av_open(world->domain, &av, &side->av, side));
	OK(fi_ep_bind(side->ep, &side->av->fid, 0));
	OK(fi_cq_open(world->domain, &cq, &side->tx, side));
	if (options->shared_cq) {
		side->rx = side->tx;
		OK(fi_ep_bind(side->ep, &side->tx->fid, both | options->bind_tx | options->bind_rx));
	} else {
		OK(fi_cq_open(world->domain, &cq, &side->rx, side));
		OK(fi_ep_bind(side->ep, &side->tx->fid, FI_TRANSMIT | options->bind_tx));
		OK(fi_ep_bind(side->ep, &side->rx->fid, FI_RECV | options->bind_rx));
	}
	if (options->counters) {
		uint64_t remote = options->caps & FI_RMA ? FI_READ | FI_WRITE : 0;

		OK(fi_cntr_open(world->domain, &counter, &side->sent, side));
		OK(fi_cntr_open(world->domain, &counter, &side->received, side));
		OK(fi_ep_bind(side->ep, &side->sent->fid, FI_SEND | remote));
		OK(fi_ep_bind(side->ep, &side->received->fid, FI_RECV));
	}
	if (options->events)
		OK(fi_ep_bind(side->ep, &options->events->fid, 0));
	if (world->stx)
		OK(fi_ep_bind(side->ep, &world->stx->fid, 0));
	if (world->srx)
		OK(fi_ep_bind(side->ep, &world->srx->fid, 0));
	OK(fi_enable(side->ep));
	side->name_length = sizeof(side->name);
	OK(fi_getname(&side->ep->fid, side->name, &side->name_length));
}

fi_addr_t introduce(struct side *into, const struct side *of)
{
	fi_addr_t peer = FI_ADDR_NOTAVAIL;

	EQUAL(fi_av_insert(into->av, of->name, 1, &peer, 0, NULL), 1);
	CHECK(peer != FI_ADDR_NOTAVAIL);
	return peer;
}

void open_world_at(struct world *world, const struct options *options, struct fi_info *info, struct fid_fabric *fabric)
{
	memset(world, 0, sizeof(*world));
	world->options = *options;
	world->sides = options->sides ? options->sides : 2;
	world->info = info;
	world->fabric = fabric;
	world->next_key = 100;
	OK(fi_domain(world->fabric, world->info, &world->domain, world));
	if (options->shared_tx) {
		struct fi_tx_attr attr = *info->tx_attr;

		attr.size = options->shared_tx;
		OK(fi_stx_context(world->domain, &attr, &world->stx, world));
	}
	if (options->shared_rx) {
		struct fi_rx_attr attr = *info->rx_attr;

		attr.size = options->shared_rx;
		OK(fi_srx_context(world->domain, &attr, &world->srx, world));
	}
	for (int i = 0; i < world->sides; i++)
		open_side(world, &world->side[i]);
	for (int i = 0; i < world->sides; i++)
		for (int k = 0; k < world->sides; k++)
			world->side[i].to[k] = introduce(&world->side[i], &world->side[k]);
}

void open_world(struct world *world, const struct options *options)
{
	struct fi_info *info = info_of(options);
	struct fid_fabric *fabric;

	OK(fi_fabric(info->fabric_attr, &fabric, world));
	open_world_at(world, options, info, fabric);
}

void close_side(struct side *side)
{
	if (side->ep)
		OK(fi_close(&side->ep->fid));
	OK(fi_close(&side->tx->fid));
	if (side->rx != side->tx)
		OK(fi_close(&side->rx->fid));
	if (side->sent)
		OK(fi_close(&side->sent->fid));
	if (side->received)
		OK(fi_close(&side->received->fid));
	OK(fi_close(&side->av->fid));
}

void close_world(struct world *world)
{
	for (int i = 0; i < world->sides; i++)
		close_side(&world->side[i]);
	if (world->stx)
		OK(fi_close(&world->stx->fid));
	if (world->srx)
		OK(fi_close(&world->srx->fid));
	OK(fi_close(&world->domain->fid));
	OK(fi_close(&world->fabric->fid));
	fi_freeinfo(world->info);
}

int close_regions_until(const atomic_bool *is_over, struct fid_domain *domain, uint64_t access)
{
	static char memory[64];
	int closed = 0;

	for (; !atomic_load(is_over); closed++) {
		struct fid_mr *mr;

		OK(fi_mr_reg(domain, memory, sizeof(memory), access, 0, 0, 0, &mr, NULL));
		OK(fi_close(&mr->fid));
	}
	return closed;
}

void progress(struct world *world)
{
	for (int i = 0; i < world->sides; i++) {
		/* No room for an entry, so none is taken. */
		(void)fi_cq_read(world->side[i].tx, NULL, 0);
		if (world->side[i].rx != world->side[i].tx)
			(void)fi_cq_read(world->side[i].rx, NULL, 0);
	}
}

struct done take_at(const char *file, int line, struct world *world, struct fid_cq *cq)
{
	struct done done;
	double end = now() + PATIENCE;
	ssize_t count;

	memset(&done, 0, sizeof(done));
	while ((count = fi_cq_readfrom(cq, &done.entry, 1, &done.source)) == -FI_EAGAIN) {
		progress(world);
		if (now() > end)
			fail(file, line, "no completion within %g s", PATIENCE);
	}
	if (count == -FI_EAVAIL) {
		struct fi_cq_err_entry error = { 0 };
		char text[256];

		EQUAL(fi_cq_readerr(cq, &error, 0), 1);
		fail(file, line, "a failed completion: %s (%d), %s, flags %#llx", fi_strerror(error.err), error.err,
			fi_cq_strerror(cq, error.prov_errno, error.err_data, text, sizeof(text)),
			(unsigned long long)error.flags);
	}
	compare_result(file, line, "fi_cq_readfrom", count, 1);
	return done;
}

struct fi_cq_err_entry take_error_at(const char *file, int line, struct world *world, struct fid_cq *cq)
{
	struct fi_cq_err_entry error = { 0 };
	struct fi_cq_tagged_entry entry;
	double end = now() + PATIENCE;
	ssize_t count;

	while ((count = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
		progress(world);
		if (now() > end)
			fail(file, line, "no completion within %g s", PATIENCE);
	}
	compare_result(file, line, "fi_cq_read", count, -FI_EAVAIL);
	compare_result(file, line, "fi_cq_readerr", fi_cq_readerr(cq, &error, 0), 1);
	return error;
}

void empty_at(const char *file, int line, struct world *world, struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry;

	for (int i = 0; i < 1000; i++) {
		progress(world);
		compare_result(file, line, "fi_cq_read", fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
	}
}

struct region register_of(struct world *world, struct side *side, void *memory, size_t length, uint64_t access)
{
	struct region region;
	int mode = world->info->domain_attr->mr_mode;

	OK(fi_mr_reg(world->domain, memory, length, access, 0, world->next_key++, 0, &region.mr, memory));
	if (mode & FI_MR_ENDPOINT) {
		OK(fi_mr_bind(region.mr, &side->ep->fid, 0));
		OK(fi_mr_enable(region.mr));
	}
	region.key = fi_mr_key(region.mr);
	region.address = mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)memory : 0;
	region.desc = fi_mr_desc(region.mr);
	return region;
}

char *nobodies(struct world *world, int count)
{
	struct fi_info *hints = hints_of(&world->options), *info;
	char *places;

	/* A port that nobody listens at. */
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "1", 0, hints, &info));
	places = malloc((size_t)count * info->dest_addrlen);
	for (int i = 0; i < count; i++)
		memcpy(places + (size_t)i * info->dest_addrlen, info->dest_addr, info->dest_addrlen);
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return places;
}

static unsigned char byte_at(size_t place, unsigned seed)
{
	return (unsigned char)(place * 7 + place / 251 + seed * 31 + 1);
}

void fill(void *memory, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		((unsigned char *)memory)[i] = byte_at(i, seed);
}

void check_filled_at(const char *file, int line, const void *memory, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		if (((const unsigned char *)memory)[i] != byte_at(i, seed))
			fail(file, line, "byte %zu of %zu is %u, expected %u", i, length, ((const unsigned char *)memory)[i],
				byte_at(i, seed));
}

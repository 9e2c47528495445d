/* Opens libibverbs and libefa at run time, as collective libraries and language bindings do, and uses a device by
 * the functions that the handles give. Prints a line for each step; the exit code is 0 if all went well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

struct versioned {
	const char *name;
	const char *version;
};

static const struct versioned verbs_symbols[] = {
#include "verbs_symbols.h"
};

static const struct versioned efa_symbols[] = {
#include "efa_symbols.h"
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

static int missing(void *handle, const struct versioned *symbols, size_t count)
{
	int absent = 0;
	for (size_t i = 0; i < count; i++) {
		void *plain = dlsym(handle, symbols[i].name);
		void *versioned = dlvsym(handle, symbols[i].name, symbols[i].version);
		if (!plain || plain != versioned) {
			printf("%s@%s: %p by dlsym, %p by dlvsym\n", symbols[i].name, symbols[i].version, plain,
			       versioned);
			absent++;
		}
	}
	return absent;
}

#define FIND(handle, name) __typeof__(&name) my_##name = (__typeof__(&name))dlsym(handle, #name)
#define CHECK(what)                                                   \
	do {                                                          \
		if (!(what)) {                                        \
			printf("failed: %s, errno %d\n", #what, errno); \
			return 1;                                     \
		}                                                     \
	} while (0)

int main(void)
{
	void *verbs = open_library("libibverbs.so.1");
	void *efa = open_library("libefa.so.1");
	int absent = missing(verbs, verbs_symbols, sizeof(verbs_symbols) / sizeof(verbs_symbols[0]));
	absent += missing(efa, efa_symbols, sizeof(efa_symbols) / sizeof(efa_symbols[0]));
	printf("%d missing\n", absent);

	FIND(verbs, ibv_get_device_list);
	FIND(verbs, ibv_get_device_name);
	FIND(verbs, ibv_open_device);
	FIND(verbs, ibv_free_device_list);
	FIND(verbs, ibv_alloc_pd);
	FIND(verbs, ibv_dealloc_pd);
	FIND(verbs, ibv_dereg_mr);
	FIND(verbs, ibv_close_device);
	FIND(efa, efadv_query_device);
	/* A macro of the header has this name. */
	struct ibv_mr *(*my_reg_mr)(struct ibv_pd *, void *, size_t, int) =
		(struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, int)) dlsym(verbs, "ibv_reg_mr");
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
	printf("send queue of %u\n", attributes.max_sq_wr);
	struct ibv_pd *pd = my_ibv_alloc_pd(context);
	CHECK(pd);
	static char memory[4096];
	struct ibv_mr *mr = my_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->addr == memory && mr->lkey);
	CHECK(my_ibv_dereg_mr(mr) == 0);
	CHECK(my_ibv_dealloc_pd(pd) == 0);
	CHECK(my_ibv_close_device(context) == 0);

	/* The machine's libibverbs has what isn't the device's. */
	FIND(verbs, ibv_wc_status_str);
	if (my_ibv_wc_status_str)
		printf("real: %s\n", my_ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR));
	else
		printf("no real libibverbs\n");
	return absent != 0;
}

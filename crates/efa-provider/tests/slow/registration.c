/* Preloaded before the software device: lets a program do something before memory is registered. */
#include <dlfcn.h>
#include <stddef.h>

void (*before_registration)(void);

/* Of libibverbs the provider takes all functions from the library that has this one. */
void *ibv_create_comp_channel(void *device)
{
	void *(*next)(void *);

	*(void **)&next = dlsym(RTLD_NEXT, __func__);
	return next(device);
}

void *ibv_reg_mr(void *domain, void *memory, size_t length, int access)
{
	void *(*next)(void *, void *, size_t, int);

	*(void **)&next = dlsym(RTLD_NEXT, __func__);
	if (before_registration)
		before_registration();
	return next(domain, memory, length, access);
}

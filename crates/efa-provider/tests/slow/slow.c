/* A program of its own, since it needs registration.c: while the device registers memory of a thread, which takes long if
 * there is much, another thread closes objects and waits for none.
 */
#include "../c/program.h"

#include <dlfcn.h>
#include <pthread.h>

static struct world world;
static _Thread_local bool is_slow;
static atomic_bool is_registering, goes_on;

static void register_slowly(void)
{
	if (!is_slow)
		return;
	atomic_store(&is_registering, true);
	while (!atomic_load(&goes_on))
		usleep(1000);
}

static void *registers(void *argument)
{
	static char memory[1 << 20];
	struct fid_mr *mr;

	(void)argument;
	is_slow = true;
	OK(fi_mr_reg(world.domain, memory, sizeof(memory), FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
	OK(fi_close(&mr->fid));
	return NULL;
}

int main(void)
{
	struct options options = { .caps = FI_MSG | FI_RMA };
	void (**before_registration)(void) = dlsym(RTLD_DEFAULT, "before_registration");
	pthread_t thread;
	double begun;

	CHECK(before_registration);
	*before_registration = register_slowly;
	open_world(&world, &options);
	OK(pthread_create(&thread, NULL, registers, NULL));
	begun = now();
	while (!atomic_load(&is_registering))
		CHECK(now() - begun < PATIENCE);
	OK(fi_close(&world.side[0].ep->fid));
	world.side[0].ep = NULL;
	FAILS(fi_close(&world.domain->fid), FI_EBUSY);
	close_side(&world.side[0]);
	atomic_store(&goes_on, true);
	OK(pthread_join(thread, NULL));
	close_side(&world.side[1]);
	world.sides = 0;
	close_world(&world);
	return 0;
}

/* Libfabric's verbs provider reads all of /proc/kallsyms twice whenever a program starts, to learn what the kernel
 * can register. That takes 0.14 s of processor time, a third of a short scenario, and no answer matters to a software
 * device. This fopen, which libfabric finds before libc's, says that the file doesn't exist.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*next)(const char *, const char *);

	if (strcmp(path, "/proc/kallsyms") == 0) {
		errno = ENOENT;
		return NULL;
	}
	if (!next)
		next = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
	return next(path, mode);
}

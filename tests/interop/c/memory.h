/* Buffers between guards, and their patterns.
 *
 *     | guard | size bytes: a seed's pattern, or untouched | guard |
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <rdma/fabric.h>
#include <stddef.h>
#include <stdint.h>

struct memory {
	unsigned char *bytes; /* behind the first guard */
	size_t size;
	struct fid_mr *region; /* of the guards too; NULL if it isn't registered */
};

/* A buffer of untouched bytes, registered for `access` unless `domain` is NULL. */
struct memory memory_new(struct fid_domain *domain, size_t size, uint64_t access);
/* Its descriptor; NULL if it isn't registered. */
void *memory_desc(const struct memory *memory);
void memory_free(struct memory *memory);

/* Fills all of it with the pattern of a seed. */
void memory_fill(struct memory *memory, uint64_t seed);

/* The first wrong byte. */
struct damage {
	const char *where; /* NULL: nowhere */
	size_t at;
	unsigned char expected, found;
};

/* Bytes `from` up to `to` must be the pattern of a seed from its beginning. */
struct damage memory_check_pattern(const struct memory *memory, size_t from, size_t to, uint64_t seed);

/* Bytes `from` up to `to` must be untouched, and so must the guards. */
struct damage memory_check_untouched(const struct memory *memory, size_t from, size_t to);

#endif

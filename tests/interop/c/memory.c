#include "memory.h"

#include <rdma/fi_domain.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { GUARD = 64, UNTOUCHED = 0xa5 };

struct memory memory_new(struct fid_domain *domain, size_t size, uint64_t access)
{
	static uint64_t next_key;
	struct memory memory = { .size = size };
	unsigned char *all = malloc(size + 2 * GUARD);

	if (!all)
		die("no memory for %zu bytes", size);
	memset(all, UNTOUCHED, size + 2 * GUARD);
	memory.bytes = all + GUARD;
	if (domain)
		require(fi_mr_reg(domain, all, size + 2 * GUARD, access, 0, next_key++, 0, &memory.region,
				  NULL),
			"fi_mr_reg");
	return memory;
}

void *memory_desc(const struct memory *memory)
{
	return memory->region ? fi_mr_desc(memory->region) : NULL;
}

void memory_free(struct memory *memory)
{
	if (!memory->bytes)
		return;
	if (memory->region)
		require(fi_close(&memory->region->fid), "fi_close of a memory region");
	free(memory->bytes - GUARD);
	*memory = (struct memory){ 0 };
}

/* Eight bytes of a pattern; splitmix64, so that no two parts of a pattern are equal. */
static uint64_t pattern(uint64_t seed, uint64_t index)
{
	uint64_t x = seed * 0xd1342543de82ef95 + (index + 1) * 0x9e3779b97f4a7c15;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static unsigned char pattern_byte(uint64_t seed, size_t at)
{
	return (unsigned char)(pattern(seed, at / 8) >> at % 8 * 8);
}

void memory_fill(struct memory *memory, uint64_t seed)
{
	for (size_t i = 0; i < memory->size; i++)
		memory->bytes[i] = pattern_byte(seed, i);
}

struct damage memory_check_pattern(const struct memory *memory, size_t from, size_t to, uint64_t seed)
{
	for (size_t i = from; i < to; i++) {
		unsigned char expected = pattern_byte(seed, i - from);

		if (memory->bytes[i] != expected)
			return (struct damage){ "message", i - from, expected, memory->bytes[i] };
	}
	return (struct damage){ 0 };
}

static struct damage untouched(const char *where, const unsigned char *bytes, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		if (bytes[i] != UNTOUCHED)
			return (struct damage){ where, i, UNTOUCHED, bytes[i] };
	}
	return (struct damage){ 0 };
}

struct damage memory_check_untouched(const struct memory *memory, size_t from, size_t to)
{
	struct damage damage = untouched("rest", memory->bytes, from, to);

	if (!damage.where)
		damage = untouched("guard-before", memory->bytes - GUARD, 0, GUARD);
	if (!damage.where)
		damage = untouched("guard-behind", memory->bytes + memory->size, 0, GUARD);
	return damage;
}

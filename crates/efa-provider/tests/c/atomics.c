/* Atomics in all call forms, of each type and operation that is offered. */
#include "program.h"

#include <complex.h>

/* A number of each type, in 16 bytes of memory or more. */
union number {
	int8_t i8; uint8_t u8; int16_t i16; uint16_t u16; int32_t i32; uint32_t u32; int64_t i64; uint64_t u64;
	float f; double d; long double ld; float complex fc; double complex dc; long double complex ldc;
	unsigned char bytes[32];
};

static const char *text_of(enum fi_datatype type, enum fi_op op)
{
	static char text[128];

	snprintf(text, sizeof(text), "%s", fi_tostr(&type, FI_TYPE_ATOMIC_TYPE));
	snprintf(text + strlen(text), sizeof(text) - strlen(text), " %s", fi_tostr(&op, FI_TYPE_ATOMIC_OP));
	return text;
}

#define PLAIN(op, result, a, b, c) switch (op) { \
	case FI_MIN: result = a < b ? a : b; return true; \
	case FI_MAX: result = a > b ? a : b; return true; \
	case FI_SUM: result = a + b; return true; \
	case FI_PROD: result = a * b; return true; \
	case FI_LOR: result = a || b; return true; \
	case FI_LAND: result = a && b; return true; \
	case FI_LXOR: result = !a != !b; return true; \
	case FI_ATOMIC_READ: result = a; return true; \
	case FI_ATOMIC_WRITE: result = b; return true; \
	case FI_CSWAP: result = c == a ? b : a; return true; \
	case FI_CSWAP_NE: result = c != a ? b : a; return true; \
	case FI_CSWAP_LE: result = c <= a ? b : a; return true; \
	case FI_CSWAP_LT: result = c < a ? b : a; return true; \
	case FI_CSWAP_GE: result = c >= a ? b : a; return true; \
	case FI_CSWAP_GT: result = c > a ? b : a; return true; \
	default: break; }

#define BITS(op, result, a, b, c) switch (op) { \
	case FI_BOR: result = a | b; return true; \
	case FI_BAND: result = a & b; return true; \
	case FI_BXOR: result = a ^ b; return true; \
	case FI_MSWAP: result = (b & c) | (a & ~c); return true; \
	default: return false; }

/* `result` of memory `a`, operand `b` and, if it compares, `c`. */
static bool outcome(enum fi_datatype type, enum fi_op op, union number *result, union number a, union number b,
	union number c)
{
	switch (type) {
#define INTEGER(number, member, unsigned_type) case number: \
		PLAIN(op, result->member, a.member, b.member, c.member) BITS(op, result->member, a.member, b.member, c.member)
	INTEGER(FI_INT8, i8, 0)
	INTEGER(FI_UINT8, u8, 0)
	INTEGER(FI_INT16, i16, 0)
	INTEGER(FI_UINT16, u16, 0)
	INTEGER(FI_INT32, i32, 0)
	INTEGER(FI_UINT32, u32, 0)
	INTEGER(FI_INT64, i64, 0)
	INTEGER(FI_UINT64, u64, 0)
	case FI_FLOAT:
		PLAIN(op, result->f, a.f, b.f, c.f)
		return false;
	case FI_DOUBLE:
		PLAIN(op, result->d, a.d, b.d, c.d)
		return false;
	default:
		/* What complex and long numbers give isn't checked. */
		return false;
	}
}

static void set(enum fi_datatype type, union number *number, int value)
{
	memset(number, 0, sizeof(*number));
	switch (type) {
	case FI_INT8: case FI_UINT8: number->i8 = (int8_t)value; break;
	case FI_INT16: case FI_UINT16: number->i16 = (int16_t)value; break;
	case FI_INT32: case FI_UINT32: number->i32 = value; break;
	case FI_INT64: case FI_UINT64: number->i64 = value; break;
	case FI_FLOAT: number->f = (float)value; break;
	case FI_DOUBLE: number->d = value; break;
	case FI_FLOAT_COMPLEX: number->fc = (float)value; break;
	case FI_DOUBLE_COMPLEX: number->dc = value; break;
	case FI_LONG_DOUBLE: number->ld = value; break;
	default: number->ldc = value; break;
	}
}

static size_t size_of(enum fi_datatype type)
{
	static const size_t sizes[] = {
		[FI_INT8] = 1, [FI_UINT8] = 1, [FI_INT16] = 2, [FI_UINT16] = 2, [FI_INT32] = 4, [FI_UINT32] = 4, [FI_INT64] = 8,
		[FI_UINT64] = 8, [FI_FLOAT] = 4, [FI_DOUBLE] = 8, [FI_FLOAT_COMPLEX] = 8, [FI_DOUBLE_COMPLEX] = 16,
		[FI_LONG_DOUBLE] = sizeof(long double), [FI_LONG_DOUBLE_COMPLEX] = 2 * sizeof(long double),
	};

	return sizes[type];
}

enum form { BASE, BASEV, BASEMSG, INJECT, FETCH, FETCHV, FETCHMSG, COMPARE, COMPAREV, COMPAREMSG, FORMS };

struct call {
	struct world *world;
	struct region *region;
	enum fi_datatype type;
	enum fi_op op;
	void *operand, *compare, *result;
	size_t count;
	uint64_t at;
};

enum { PLACES = 64 };

static ssize_t start(enum form form, const struct call *call)
{
	struct side *from = &call->world->side[0];
	fi_addr_t to = from->to[1];
	struct fi_ioc operand = { call->operand, call->count }, result = { call->result, call->count };
	struct fi_ioc compare = { call->compare, call->count };
	struct fi_rma_ioc target = { .addr = call->at, .count = call->count, .key = call->region->key };
	struct fi_msg_atomic message = {
		.msg_iov = &operand, .iov_count = 1, .addr = to, .rma_iov = &target, .rma_iov_count = 1, .datatype = call->type,
		.op = call->op, .context = CONTEXT(form),
	};
	uint64_t at = call->at, key = call->region->key;
	void *context = CONTEXT(form);

	switch (form) {
	case BASE:
		return fi_atomic(from->ep, call->operand, call->count, NULL, to, at, key, call->type, call->op, context);
	case BASEV:
		return fi_atomicv(from->ep, &operand, NULL, 1, to, at, key, call->type, call->op, context);
	case BASEMSG:
		return fi_atomicmsg(from->ep, &message, 0);
	case INJECT:
		return fi_inject_atomic(from->ep, call->operand, call->count, to, at, key, call->type, call->op);
	case FETCH:
		return fi_fetch_atomic(from->ep, call->operand, call->count, NULL, call->result, NULL, to, at, key, call->type,
			call->op, context);
	case FETCHV:
		return fi_fetch_atomicv(from->ep, &operand, NULL, 1, &result, NULL, 1, to, at, key, call->type, call->op, context);
	case FETCHMSG:
		return fi_fetch_atomicmsg(from->ep, &message, &result, NULL, 1, 0);
	case COMPARE:
		return fi_compare_atomic(from->ep, call->operand, call->count, NULL, call->compare, NULL, call->result, NULL, to,
			at, key, call->type, call->op, context);
	case COMPAREV:
		return fi_compare_atomicv(from->ep, &operand, NULL, 1, &compare, NULL, 1, &result, NULL, 1, to, at, key,
			call->type, call->op, context);
	default:
		return fi_compare_atomicmsg(from->ep, &message, &compare, NULL, 1, &result, NULL, 1, 0);
	}
}

static int valid(enum form form, struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count)
{
	return form >= COMPARE ? fi_compare_atomicvalid(ep, type, op, count)
		: form >= FETCH ? fi_fetch_atomicvalid(ep, type, op, count) : fi_atomicvalid(ep, type, op, count);
}

/* Two numbers at once where there is room. */
static void run_form(struct world *world, struct region *region, union number *memory, enum form form,
	enum fi_datatype type, enum fi_op op)
{
	static size_t place;
	static const int starts[] = { 5, 12 }, operands[] = { 3, 6 }, compares[] = { 5, 6 };
	struct side *from = &world->side[0];
	unsigned char operand[64], compare[64], result[64];
	struct call call = {
		.world = world, .region = region, .type = type, .op = op, .operand = operand, .compare = compare,
		.result = result,
	};
	size_t size = size_of(type), limit = 0;
	bool checked = false;
	union number expected[2] = { 0 };
	int reply = valid(form, from->ep, type, op, &limit);

	if (reply) {
		CHECK(reply == -FI_EOPNOTSUPP || !is_ours());
		return;
	}
	CHECK(limit >= 1);
	call.count = limit < 2 ? 1 : 2;
	/* Nothing waits for what isn't checked, so each goes to a place of its own. */
	place = (place + 1) % PLACES;
	memory += place * 8;
	call.at = region->address + place * 8 * sizeof(*memory);
	memset(memory, 0xee, 128);
	memset(result, 0x11, sizeof(result));
	for (size_t i = 0; i < call.count; i++) {
		union number a, b, c;

		set(type, &a, starts[i]);
		set(type, &b, operands[i]);
		set(type, &c, compares[i]);
		memcpy((char *)memory + i * size, &a, size);
		memcpy(operand + i * size, &b, size);
		memcpy(compare + i * size, &c, size);
		checked = outcome(type, op, &expected[i], a, b, c);
	}
	POST(world, start(form, &call));
	if (form != INJECT)
		DONE(world, from->tx, CONTEXT(form), FI_ATOMIC | (uint64_t)(!is_ours() ? 0 : form >= FETCH ? FI_READ : FI_WRITE));
	if (form < FETCH)
		/* It may complete here before it was done there. */
		for (double end = now() + PATIENCE; checked && memcmp(memory, &expected[0], size) && now() < end; )
			progress(world);
	for (size_t i = 0; i < call.count; i++) {
		union number a;

		if (checked)
			compare_bytes(text_of(type, op), form, "memory", (char *)memory + i * size, &expected[i], size);
		set(type, &a, starts[i]);
		if (form >= FETCH && size <= 8)
			compare_bytes(text_of(type, op), form, "result", result + i * size, &a, size);
	}
	for (size_t i = call.count * size; i < 128; i++)
		EQUAL(((unsigned char *)memory)[i], 0xee);
	if (form < FETCH)
		EQUAL(result[0], 0x11);
}

static void forms(void)
{
	struct options options = { .caps = FI_MSG | FI_ATOMIC };
	struct world world;
	static union number memory[8 * PLACES];
	struct region region;
	int offered = 0;

	open_world(&world, &options);
	region = register_of(&world, &world.side[1], memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (int form = 0; form < FORMS; form++)
		for (int type = 0; type <= FI_LONG_DOUBLE_COMPLEX; type++)
			for (int op = 0; op <= FI_MSWAP; op++) {
				size_t limit;

				offered += !valid(form, world.side[0].ep, type, op, &limit);
				run_form(&world, &region, memory, form, type, op);
			}
	CHECK(offered > 100);
	EMPTY(&world, world.side[0].tx);
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* An atomic on no element completes like one of its form, also if it has nothing to return. */
static void of_nothing(void)
{
	struct options options = { .caps = FI_MSG | FI_ATOMIC };
	struct world world;
	static uint64_t memory[2];
	uint64_t number = 1, result = 2;
	struct region region;
	struct call call = {
		.world = &world, .region = &region, .type = FI_UINT64, .operand = &number, .compare = &number, .result = &result,
	};

	open_world(&world, &options);
	region = register_of(&world, &world.side[1], memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE);
	call.at = region.address;
	for (enum form form = BASE; form < FORMS; form++) {
		call.op = form >= COMPARE ? FI_CSWAP : FI_SUM;
		POST(&world, start(form, &call));
		if (form != INJECT)
			DONE(&world, world.side[0].tx, CONTEXT(form), FI_ATOMIC | (form >= FETCH ? FI_READ : FI_WRITE));
	}
	EQUAL(memory[0], 0);
	EQUAL(result, 2);
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* fi_query_atomic answers as the endpoint does. */
static void query(void)
{
	static const uint64_t flags[] = { 0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC };
	static const enum form forms[] = { BASE, FETCH, COMPARE };
	struct options options = { .caps = FI_MSG | FI_ATOMIC };
	struct world world;

	open_world(&world, &options);
	for (size_t i = 0; i < COUNT(flags); i++)
		for (int type = 0; type <= FI_LONG_DOUBLE_COMPLEX; type++)
			for (int op = 0; op <= FI_MSWAP; op++) {
				struct fi_atomic_attr attr = { 0 };
				size_t limit = 0;
				int here = fi_query_atomic(world.domain, type, op, &attr, flags[i]);
				int there = valid(forms[i], world.side[0].ep, type, op, &limit);

				compare_numbers(text_of(type, op), (int)i, "fi_query_atomic is as fi_atomicvalid", !here, !there);
				if (!here) {
					if (is_ours() || type < FI_LONG_DOUBLE)
						EQUAL(attr.size, size_of(type));
					EQUAL(attr.count, limit);
				}
			}
	/* No such type, operation or flag. */
	if (is_ours()) {
		struct fi_atomic_attr attr = { 0 };

		CHECK(fi_query_atomic(world.domain, 1000, FI_SUM, &attr, 0) < 0);
		CHECK(fi_query_atomic(world.domain, FI_UINT64, 1000, &attr, 0) < 0);
		FAILS(fi_query_atomic(world.domain, FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC), FI_EINVAL);
		FAILS(fi_query_atomic(world.domain, FI_UINT64, FI_SUM, &attr, 1ULL << 40), FI_EINVAL);
		CHECK(fi_query_atomic(world.domain, FI_UINT64, FI_SUM, &attr, FI_TAGGED) < 0);
	}
	close_world(&world);
}

/* Many additions to one number by two endpoints lose none. */
static void together(void)
{
	enum { EACH = 500 };
	struct options options = { .caps = FI_MSG | FI_ATOMIC, .sides = 3 };
	struct world world;
	static uint64_t memory;
	uint64_t one = 1;
	struct region region;
	int started[2] = { 0 }, done[2] = { 0 };
	double end = now() + PATIENCE;

	memory = 0;
	open_world(&world, &options);
	region = register_of(&world, &world.side[2], &memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE);
	while (done[0] < EACH || done[1] < EACH) {
		CHECK(now() < end);
		for (int i = 0; i < 2; i++) {
			struct side *from = &world.side[i];
			struct fi_cq_tagged_entry entry;

			if (started[i] < EACH && started[i] < done[i] + 10) {
				ssize_t result = fi_atomic(from->ep, &one, 1, NULL, from->to[2], region.address, region.key, FI_UINT64, FI_SUM,
					NULL);

				if (result != -FI_EAGAIN) {
					OK(result);
					started[i]++;
				}
			}
			if (fi_cq_read(from->tx, &entry, 1) == 1)
				done[i]++;
		}
		progress(&world);
	}
	while (memory < 2 * EACH && now() < end)
		progress(&world);
	EQUAL(memory, 2 * EACH);
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

/* An atomic beyond a region's end fails at its start. */
static void refused_access(void)
{
	struct options options = { .caps = FI_MSG | FI_ATOMIC };
	struct world world;
	static uint64_t memory[4];
	uint64_t operand = 1, result;
	struct side *from = &world.side[0];
	struct region region;
	struct fi_cq_err_entry error;

	open_world(&world, &options);
	memset(memory, 0, sizeof(memory));
	region = register_of(&world, &world.side[1], memory, 16, FI_REMOTE_READ | FI_REMOTE_WRITE);
	POST(&world, fi_fetch_atomic(from->ep, &operand, 1, NULL, &result, NULL, from->to[1], region.address + 16, region.key,
		FI_UINT64, FI_SUM, CONTEXT(1)));
	error = TAKE_ERROR(&world, from->tx);
	EQUAL((uintptr_t)error.op_context, (uintptr_t)CONTEXT(1));
	EQUAL(memory[2], 0);
	OK(fi_close(&region.mr->fid));
	close_world(&world);
}

const struct program atomics[] = {
	{ "atomics-forms", forms },
	{ "atomics-of-nothing", of_nothing },
	{ "atomics-query", query },
	{ "atomics-together", together },
	{ "atomics-refused-access", refused_access },
	{ NULL, NULL },
};

/*
 * Shared by the programs: checks that name what they compare, endpoints of one process with all that they need, and
 * completions that are waited for with a deadline.
 *
 * The variable PROVIDER names the provider; `efars` by default.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

/* Exit code of a program that needs something that the provider doesn't offer. */
enum { NOT_OFFERED = 77 };

/* Seconds after which something that must happen is missing. */
#define PATIENCE 60.0

/* Ends the process with a message. */
void fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
/* Ends the process with NOT_OFFERED. */
void not_offered(const char *what) __attribute__((noreturn));
void compare_numbers(const char *file, int line, const char *what, long long actual, long long expected);
void compare_result(const char *file, int line, const char *what, long long actual, long long expected);
void compare_text(const char *file, int line, const char *what, const char *actual, const char *expected);
void compare_bytes(const char *file, int line, const char *what, const void *actual, const void *expected, size_t length);

#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(what) do { if (!(what)) FAIL("false: %s", #what); } while (0)
#define EQUAL(actual, expected) compare_numbers(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
#define SAME_TEXT(actual, expected) compare_text(__FILE__, __LINE__, #actual, actual, expected)
#define SAME_BYTES(actual, expected, length) \
	compare_bytes(__FILE__, __LINE__, #actual, actual, expected, length)
/* The call succeeds, or fails with this code, as FI_EINVAL. */
#define OK(call) compare_result(__FILE__, __LINE__, #call, (long long)(call), 0)
#define FAILS(call, code) compare_result(__FILE__, __LINE__, #call, (long long)(call), -(long long)(code))

/* Seconds of a clock that doesn't go back. */
double now(void);
const char *provider(void);
/* Whether the provider is ours, of which everything is expected. */
bool is_ours(void);
/* Our library, beside libfabric: newer programs than its release come with a newer libfabric. The program ends with
 * NOT_OFFERED if the provider is another. */
const struct fi_provider *library(void);

/* How endpoints are set up; zeros mean the defaults. */
struct options {
	uint32_t version;		/* of the API: 1.17 */
	uint64_t caps;			/* FI_MSG | FI_TAGGED */
	uint64_t tx_flags, rx_flags;	/* op_flags */
	uint64_t bind_tx, bind_rx;	/* FI_SELECTIVE_COMPLETION */
	enum fi_cq_format format;	/* FI_CQ_FORMAT_TAGGED */
	enum fi_wait_obj wait;		/* of queues and counters: FI_WAIT_NONE */
	enum fi_cq_wait_cond condition;
	struct fid_wait *set;		/* for FI_WAIT_SET */
	enum fi_av_type av;		/* FI_AV_TABLE */
	enum fi_progress progress;	/* either */
	size_t cq_size;			/* 256 */
	size_t pieces;			/* iov_limit */
	uint64_t mode;			/* what this program does for the provider */
	int sides;			/* 2 */
	bool counters;
	struct fid_eq *events;		/* bound to each endpoint, if there is one */
	bool shared_cq;			/* sends and receives complete in one queue */
	size_t shared_tx, shared_rx;	/* operations of a context of all sides, if there is to be one */
};

enum { SIDES = 3, NAME = 512 };

/* An endpoint. */
struct side {
	struct fid_ep *ep;
	struct fid_cq *tx, *rx;		/* the same with `shared_cq` */
	struct fid_cntr *sent, *received;
	struct fid_av *av;
	fi_addr_t to[SIDES];		/* the sides in this side's address vector */
	char name[NAME];
	size_t name_length;
};

/* Endpoints of one domain that know each other. */
struct world {
	struct options options;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_stx *stx;		/* with `shared_tx` */
	struct fid_ep *srx;		/* with `shared_rx` */
	int sides;
	struct side side[SIDES];
	uint64_t next_key;
};

struct fi_info *hints_of(const struct options *options);
/* The first answer to the hints; the program ends with NOT_OFFERED if there is none. */
struct fi_info *info_of(const struct options *options);
void open_world(struct world *world, const struct options *options);
/* A world over a fabric that is open, for a wait set; `info` goes over to the world. */
void open_world_at(struct world *world, const struct options *options, struct fi_info *info, struct fid_fabric *fabric);
void close_world(struct world *world);
/* Opens, binds and enables the endpoint of a side. */
void open_side(struct world *world, struct side *side);
/* Closes all that a side has; `ep` is NULL if that is closed already. */
void close_side(struct side *side);
/* Registers and closes regions until another thread sets the flag. Returns how many. */
int close_regions_until(const atomic_bool *is_over, struct fid_domain *domain, uint64_t access);
/* Inserts the address of `of` into the address vector of `into`. */
fi_addr_t introduce(struct side *into, const struct side *of);
/* `count` times the place, as an address vector takes it, of an endpoint that is to be asked there and isn't. */
char *nobodies(struct world *world, int count);
/* Lets all endpoints work. */
void progress(struct world *world);

/* Calls until the result isn't -FI_EAGAIN, with progress meanwhile. */
#define RETRIED(world, call) __extension__ ({ \
	double end_ = now() + PATIENCE; \
	ssize_t result_; \
	while ((result_ = (call)) == -FI_EAGAIN) { \
		progress(world); \
		if (now() > end_) FAIL("-FI_EAGAIN for %g s: %s", PATIENCE, #call); \
	} \
	result_; })
#define POST(world, call) OK(RETRIED(world, call))

/* A completion, and who sent the message. */
struct done {
	struct fi_cq_tagged_entry entry;
	fi_addr_t source;
};

/* The next completion of a queue of FI_CQ_FORMAT_TAGGED, which must be a success, or a failure. */
struct done take_at(const char *file, int line, struct world *world, struct fid_cq *cq);
struct fi_cq_err_entry take_error_at(const char *file, int line, struct world *world, struct fid_cq *cq);
#define TAKE(world, cq) take_at(__FILE__, __LINE__, world, cq)
#define TAKE_ERROR(world, cq) take_error_at(__FILE__, __LINE__, world, cq)
/* Nothing is in the queue, also after some progress. */
void empty_at(const char *file, int line, struct world *world, struct fid_cq *cq);
#define EMPTY(world, cq) empty_at(__FILE__, __LINE__, world, cq)

/* Takes the completion of a send or receive and checks its context and flags. */
#define DONE(world, cq, what, with) do { \
	struct done done_ = TAKE(world, cq); \
	EQUAL((uintptr_t)done_.entry.op_context, (uintptr_t)(what)); \
	KIND(done_.entry.flags, with); \
} while (0)
/* The flags that tell what completed. Of other providers' flags more is accepted: `sockets` says that tagged messages
 * are also FI_MSG. */
#define KIND(flags, with) EQUAL((flags) & (is_ours() ? FLAGS_OF_KIND : (with)), with)
#define FLAGS_OF_KIND (FI_SEND | FI_RECV | FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE \
	| FI_REMOTE_READ | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA | FI_MULTI_RECV)

/* Registers memory of all access; the address and key that a peer names it by. */
struct region {
	struct fid_mr *mr;
	uint64_t address, key;
	void *desc;
};
struct region register_of(struct world *world, struct side *side, void *memory, size_t length, uint64_t access);

/* Bytes that differ from place to place and by `seed`. */
void fill(void *memory, size_t length, unsigned seed);
void check_filled_at(const char *file, int line, const void *memory, size_t length, unsigned seed);
#define FILLED(memory, length, seed) check_filled_at(__FILE__, __LINE__, memory, length, seed)

/* Number of elements of an array. */
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* A context of an operation, told apart by its number. */
#define CONTEXT(number) ((void *)&contexts[number])
extern struct fi_context2 contexts[64];

/* A program: what it is called, and what it does. */
struct program {
	const char *name;
	void (*run)(void);
};

#endif

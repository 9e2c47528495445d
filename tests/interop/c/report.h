/* What the peer writes: one line a result on standard output, and its last words on standard error. */
#ifndef REPORT_H
#define REPORT_H

#include <rdma/fi_eq.h>
#include <sys/types.h>

/* A line of a result. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Ends the process: it can't do what the scenario needs. */
__attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...);

/* Ends the process if a call of libfabric failed. */
void require(ssize_t result, const char *call);

/* A line `done …` or `failed …` for an operation that ended; `name` is its id. */
void say_done(const char *name, const struct fi_cq_tagged_entry *entry, fi_addr_t source);
void say_failed(const char *name, const struct fi_cq_err_entry *entry, const char *provider);

#endif
